import { expect, test } from "vitest";

import { parsed } from "../src/api";
import { hashOfLine, whenText } from "../src/parts/job_table";
import { toggled } from "../src/views/jobs";
import { columnsFor } from "../src/views/overview";
import { job } from "./sample";

const JOBS = ["1", "2", "3", "4"].map((label) => job(label));

test("Shift chooses all jobs between two", () => {
  const [first, , third, last] = JOBS;
  if (!first || !third || !last) throw new Error();
  const one = toggled(new Map(), JOBS, third, true);
  expect([...one.keys()]).toEqual(["3"]);
  expect([...toggled(one, JOBS, first, true).keys()].sort()).toEqual(["1", "2", "3"]);
  expect([...toggled(one, JOBS, last, true).keys()]).toEqual(["3", "4"]);
  expect(toggled(one, JOBS, third, false).size).toBe(0);
});

test("a line of several tasks leads to its array", () => {
  expect(hashOfLine(job("12.[3-9]", { tasks: 7 }))).toBe("#/jobs?array=12&state=all");
  expect(hashOfLine(job("12.3"))).toBe("#/job/12.3");
});

test("an estimate that has passed is not shown as no time left", () => {
  const at = Date.parse("2026-11-15T12:00:00Z");
  const running = job("5", { state: "running", expected_end: "2026-11-15T11:59:00Z" });
  expect(whenText(running, at)).toBe("longer than expected");
  expect(whenText({ ...running, expected_end: "2026-11-15T12:05:00Z" }, at)).toBe("~5m left");
});

test("cards of GPUs stand in rows of the same length", () => {
  expect([8, 7, 4, 1].map((cards) => columnsFor(cards, 1720))).toEqual([4, 4, 4, 1]);
  expect(columnsFor(8, 350)).toBe(1);
  expect(columnsFor(8, 2500)).toBe(8);
});

test("characters that turn text around are shown as escapes", () => {
  expect(parsed<{ name: string }>(JSON.stringify({ name: "\u202ertl" })).name).toBe("\\u202ertl");
  expect(parsed<{ name: string }>(JSON.stringify({ name: "\u05d0" })).name).toBe("\u05d0");
});
