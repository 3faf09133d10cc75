import { describe, expect, test } from "vitest";

import { isMove, mergeJobs, mergeStatus } from "../src/changes";
import { changes, device, job, status } from "./sample";

const labels = (jobs: { label: string }[]): string[] => jobs.map((one) => one.label);

describe("a page of jobs", () => {
  test("gets new values in place and needs no other page", () => {
    const progress = changes({ jobs: [job("2", { progress: 0.5 }), job("9")] });
    const merged = mergeJobs([job("1"), job("2")], progress);
    expect(labels(merged)).toEqual(["1", "2"]);
    expect(merged[1]?.progress).toBe(0.5);
    expect(isMove(progress)).toBe(false);
  });
  test.each([{ changed: ["1"] }, { gone: ["7"] }, { more: true }])("is read again after %j", (what) => {
    expect(isMove(changes(what))).toBe(true);
  });
});

describe("the status", () => {
  test("lists active jobs first, then by place, and drops those that ended", () => {
    const before = status([job("1"), job("2", { state: "queued" }), job("5", { state: "queued" })]);
    const after = mergeStatus(
      before,
      changes({
        jobs: [
          job("1", { state: "done" }),
          job("2", { state: "running" }),
          job("3", { state: "queued", place: 2 }),
          job("4", { state: "queued", place: 1 }),
        ],
        gone: ["5"],
        counts: { active: 1, waiting: 2, held: 0 },
      }),
    );
    expect(labels(after.jobs)).toEqual(["2", "4", "3"]);
    expect(after.counts).toEqual({ active: 1, waiting: 2, held: 0 });
    expect(after.at).toBe("2026-11-17T12:00:30Z");
  });
  test("keeps devices that did not change, in their order", () => {
    const before = status([], [device("a"), device("b")]);
    const after = mergeStatus(before, changes({ devices: [device("c"), device("a", { utilisation_percent: 90 })] }));
    expect(after.devices.map((one) => one.id)).toEqual(["a", "b", "c"]);
    expect(after.devices[0]?.utilisation_percent).toBe(90);
    expect(after.devices[1]).toBe(before.devices[1]);
  });
  test("knows that the engine stopped", () => {
    const stopped = { ...status([]).engine, running: false };
    expect(mergeStatus(status([]), changes({ engine: stopped })).engine.running).toBe(false);
  });
});
