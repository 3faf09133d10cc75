import { expect, test } from "vitest";

import { OTHERS, daysTable, everyDay } from "../src/charts/history";
import { memoryParts } from "../src/parts/marks";
import { summary } from "../src/parts/confirm";
import { stepArea, stepPath } from "../src/parts/sparkline";
import type { Usage } from "../src/types";
import { GIB, device } from "./sample";

function usage(days: Usage["days"]): Usage {
  return {
    schema: "",
    at: "",
    host: "lab7",
    simulated: false,
    user: "me",
    since: null,
    gpu_hours: 0,
    busy_gpu_hours: 0,
    saved_gpu_hours: 0,
    outcomes: {},
    days,
    groups: [],
    jobs: [],
    hidden: 0,
    users: [],
    colours: {},
  };
}

test("days without jobs are shown, too", () => {
  expect(everyDay(["2026-03-01", "2026-02-27"])).toEqual(["2026-02-27", "2026-02-28", "2026-03-01"]);
  expect(everyDay([])).toEqual([]);
});

test("GPU-hours are stacked by group, small groups as one", () => {
  const days = Array.from({ length: 9 }, (_, index) => ({
    day: "2026-11-17",
    group: `g${index}`,
    gpu_hours: index + 1,
  }));
  const table = daysTable(usage(days), 4);
  expect(table.groups).toEqual(["g8", "g7", "g6", OTHERS]);
  expect(table.hours.map((row) => row[0])).toEqual([9, 8, 7, 21]);
});

test("parts of the memory never exceed the bar", () => {
  const parts = memoryParts(device("0", { ours_bytes: 30 * GIB, reserved_bytes: 38 * GIB, others_bytes: 8 * GIB }));
  expect(parts.ours + parts.reserved + parts.others).toBeLessThanOrEqual(1);
  expect(parts.reserved).toBeCloseTo(0.05);
  expect(memoryParts(device("0", { memory_bytes: null }))).toEqual({ ours: 0, reserved: 0, others: 0 });
});

test("a curve has gaps where nothing is known", () => {
  const path = stepPath(
    [
      [0, 50],
      [10, 100],
      [20, null],
      [30, 0],
      [90, 0],
    ],
    0,
    100,
    20,
    100,
    10,
  );
  expect(path).toBe("M0.0 5.0H10.0V0.0M30.0 10.0M90.0 10.0");
  expect(stepArea(path, 10)).toBe("M0.0 10V5.0H10.0V0.0H10.0V10ZM30.0 10V10.0H30.0V10ZM90.0 10V10.0H90.0V10Z");
});

test("the result of an action names what was refused", () => {
  const result = { id: 1, shown: "3", name: "a", before: "running", after: "stopping", refused: false, said: "" };
  expect(summary("cancel", [result])).toEqual({ text: "1 job cancelled", bad: false });
  expect(summary("hold", [result, { ...result, shown: "4", refused: true, said: "is running" }])).toEqual({
    text: "1 job held; 1 job refused: 4 is running",
    bad: true,
  });
});
