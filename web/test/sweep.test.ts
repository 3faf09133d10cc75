import { expect, test } from "vitest";

import { parallelOption, summaryOf } from "../src/charts/sweep";
import type { Palette } from "../src/charts/palette";
import { brushedTrials, isBest, paramsText, scaleOf, stepLine, tick } from "../src/charts/sweep_data";
import type { SweepAxis, SweepPage, SweepPoint } from "../src/types";

function axis(name: string, more: Partial<SweepAxis> = {}): SweepAxis {
  return { name, log: false, names: [], ...more };
}

function point(number: number, line: (number | null)[], goodness = 0): SweepPoint {
  const trial = {
    number,
    job: number + 10,
    state: "done" as const,
    params: {},
    values: {},
    step: null,
    started: null,
    ended: null,
    seconds: null,
    gpu_hours: 0,
    message: "",
  };
  return { trial, place: number + 1, line, goodness };
}

test("the best so far goes on to the last trial", () => {
  expect(stepLine([], 9)).toEqual([]);
  expect(
    stepLine(
      [
        [2, 0.5],
        [5, 0.3],
      ],
      9,
    ),
  ).toEqual([
    [2, 0.5],
    [5, 0.3],
    [9, 0.3],
  ]);
  expect(stepLine([[4, 1]], 4)).toEqual([[4, 1]]);
});

test("a trial is chosen if it is inside of a part of each axis", () => {
  const points = [point(0, [0.1, 0, 5]), point(1, [0.2, 1, 6]), point(2, [null, 1, 7])];
  expect(brushedTrials(points, {})).toBeNull();
  expect(brushedTrials(points, { 0: [] })).toBeNull();
  expect(brushedTrials(points, { 1: [[1, 1]] })).toEqual(new Set([1, 2]));
  expect(brushedTrials(points, { 0: [[0.15, 1]], 1: [[1, 1]] })).toEqual(new Set([1]));
  const parts: [number, number][] = [
    [4, 5],
    [7, 8],
  ];
  expect(brushedTrials(points, { 2: parts })).toEqual(new Set([0, 2]));
  expect(brushedTrials(points, { 2: [[8, 9]] })).toEqual(new Set());
  expect(brushedTrials(points, { 2: [[6, 4]] }), "of a reversed axis").toEqual(new Set([0, 1]));
});

test("an axis has names, numbers or powers", () => {
  expect(scaleOf(axis("opt", { names: ["adam", "sgd"] }), [0, 1]).type).toBe("category");
  expect(scaleOf(axis("lr", { log: true }), [1e-4, 3e-2, null])).toEqual({ type: "log", logBase: 10 });
  expect(scaleOf(axis("lr", { log: true }), [2e-3, 9e-3]).type).toBe("value");
  expect(scaleOf(axis("lr", { log: true }), [0, 9]).type).toBe("value");
  expect(scaleOf(axis("bs"), [64, 16, 32, 16, 128])).toEqual({ type: "log", logBase: 2 });
  expect(scaleOf(axis("bs"), [24, 48, 96]).type).toBe("value");
  expect(scaleOf(axis("depth"), [1, 2, 3]).type).toBe("value");
  expect(scaleOf(axis("empty"), []).type).toBe("value");
});

test("labels are short", () => {
  expect([0, 0.25, 0.001, 1e-4, 2.5e-5, 150, 2_000_000].map(tick)).toEqual([
    "0",
    "0.25",
    "0.001",
    "1e-4",
    "2.5e-5",
    "150",
    "2e6",
  ]);
  expect(paramsText({ lr: 1e-3, opt: "adam", nesterov: true })).toBe("lr=0.001  opt=adam  nesterov=true");
});

test("the best tenth is a series of its own, and a missing parameter leaves a gap", () => {
  const points = Array.from({ length: 20 }, (_, index) => point(index, [index === 3 ? null : index, index], 1 - index / 19));
  const page = { sweep: { objectives: [{ name: "loss", goal: "min", source: "" }] }, axes: [axis("a"), axis("loss")], points };
  const option = parallelOption(page as unknown as SweepPage, false, {} as Palette) as unknown as {
    series: { data: { value: unknown[] }[] }[];
    parallelAxis: { inverse: boolean }[];
  };
  expect(option.series.map((one) => one.data.length)).toEqual([18, 2]);
  expect(points.filter(isBest).map((one) => one.trial.number)).toEqual([0, 1]);
  expect(option.series[0]?.data[1]?.value[0]).toBe("-");
  expect(option.parallelAxis.map((one) => one.inverse)).toEqual([false, true]);
  expect(summaryOf([3, 1, 2])).toEqual({ low: 1, middle: 2, high: 3 });
  expect(summaryOf([])).toBeNull();
});
