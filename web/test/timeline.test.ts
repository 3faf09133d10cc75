import { describe, expect, test } from "vitest";

import { isFailure } from "../src/changes";
import { heat, longHex, mixed } from "../src/charts/palette";
import {
  bridged,
  edgesOf,
  firstWindow,
  memoryRuns,
  pieces,
  placeInBand,
  usedPart,
} from "../src/charts/lanes";
import { zoomedWindow } from "../src/charts/lanes";
import { GIB, bar, lane, timeline } from "./sample";

const at = Date.parse("2026-11-17T12:20:00Z");

describe("bars", () => {
  test("that ended are one piece", () => {
    const [one, ...others] = pieces(timeline([lane([bar("1")])]));
    expect(others).toEqual([]);
    expect(one).toMatchObject({ lane: 0, forecast: false, used: 0.5 });
  });
  test("that run have a piece until now and a pale one until their expected end", () => {
    const running = bar("1", { state: "running", end: null, expected_end: "2026-11-17T12:30:00Z" });
    const [past, future] = pieces(timeline([lane([running])]));
    expect([past?.until, future?.from, future?.forecast]).toEqual([at, at, true]);
  });
  test("that are overdue have no future", () => {
    const overdue = bar("1", { state: "running", end: null, expected_end: "2026-11-17T12:10:00Z" });
    expect(pieces(timeline([lane([overdue])]))).toHaveLength(1);
  });
  test("that are expected without a known end last until the end of the chart", () => {
    const expected = bar("2", { state: "queued", start: "2026-11-17T12:40:00Z", end: null, used_bytes: null });
    const [one] = pieces(timeline([lane([], [expected])]));
    expect(one).toMatchObject({ forecast: true, used: null, until: Date.parse("2026-11-17T13:00:00Z") });
  });
  test("are filled by what was used, and not beyond their height", () => {
    expect(usedPart(bar("1", { used_bytes: 16 * GIB }), lane([]))).toBe(1);
    expect(usedPart(bar("1", { used_bytes: null }), lane([]))).toBeNull();
  });
  test("of failures are marked", () => {
    expect(["failed", "oom", "timeout", "lost"].every((state) => isFailure(bar("1", { state: state as "oom" })))).toBe(
      true,
    );
    expect(isFailure(bar("1", { state: "cancelled" }))).toBe(false);
  });
});

test("bars that share a GPU are stacked without overlap, inside the band and above the strip", () => {
  const lower = placeInBand(0, 0.25, 100, 90);
  const upper = placeInBand(0.25, 0.75, 100, 90);
  expect(upper.y + upper.height).toBeCloseTo(lower.y);
  expect(upper.y).toBeGreaterThan(100);
  expect(lower.y + lower.height).toBeLessThan(190 - 7);
});

test("unknown memory interrupts the curve", () => {
  expect(memoryRuns([1, 2, null, 4], 4, 0, 10, 38)).toEqual([
    [
      [0, 0.25],
      [10, 0.25],
      [10, 0.5],
      [20, 0.5],
    ],
    [
      [30, 1],
      [38, 1],
    ],
  ]);
});

test("a sample that is not written yet is taken from the minute before", () => {
  expect(bridged([1, 5, null, 7])).toEqual([1, 5, 5, 7]);
  expect(bridged([1, null, 5, 7])).toEqual([1, null, 5, 7]);
  expect(bridged([1, null, null])).toEqual([1, null, null]);
});

describe("the axis", () => {
  test("begins where something is known", () => {
    expect(edgesOf(timeline([lane([bar("1")])])).from).toBe(Date.parse("2026-11-17T12:00:00Z"));
    expect(edgesOf(timeline([lane([bar("1", { start: "2026-11-16T12:00:00Z" })])])).from).toBe(
      Date.parse("2026-11-17T11:00:00Z"),
    );
  });
  test("shows no more of the future than of the past at first", () => {
    const long = { ...timeline([lane([bar("1")])]), until: "2026-11-18T12:00:00Z" };
    expect(firstWindow(long)).toEqual({
      from: Date.parse("2026-11-17T12:00:00Z"),
      until: Date.parse("2026-11-17T12:40:00Z"),
    });
    expect(firstWindow({ ...long, until: "2026-11-17T12:21:00Z" })).toBeNull();
  });
  test("has some minutes of past even if nothing ran", () =>
    expect(edgesOf(timeline([lane([])])).from).toBe(at - 300_000));
});

describe("the window", () => {
  const edges = { from: 0, until: 100 };
  test("zooms around its middle", () => expect(zoomedWindow(edges, edges, 0.5, 0)).toEqual({ from: 25, until: 75 }));
  test("never leaves the edges", () => {
    expect(zoomedWindow({ from: 80, until: 100 }, edges, 1, 0.5)).toEqual({ from: 80, until: 100 });
    expect(zoomedWindow({ from: 10, until: 30 }, edges, 100, 0)).toEqual(edges);
  });
});

test("colours are mixed", () => {
  expect(mixed("#000000", "#ffffff", 0.5)).toBe("#808080");
  expect([longHex("#fa0"), longHex("#ffaa00")]).toEqual(["#ffaa00", "#ffaa00"]);
  expect(heat(0, ["#000000", "#111111", "#222222"])).toBe("#000000");
  expect(heat(1, ["#000000", "#111111", "#222222"])).toBe("#222222");
});
