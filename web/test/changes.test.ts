import { describe, expect, test } from "vitest";

import { mergeJobs, mergeStatus } from "../src/changes";
import { device, job, status } from "./sample";

const labels = (jobs: { label: string }[]): string[] => jobs.map((one) => one.label);

describe("a page of jobs", () => {
  test("gets new values in place and needs no other page", () => {
    const merged = mergeJobs([job("1"), job("2")], { jobs: [job("2", { progress: 0.5 })] });
    expect(labels(merged.jobs)).toEqual(["1", "2"]);
    expect(merged.jobs[1]?.progress).toBe(0.5);
    expect(merged.moved).toBe(false);
  });
  test("is read again when a job changes its state, comes or goes", () => {
    expect(mergeJobs([job("1")], { jobs: [job("1", { state: "done" })] }).moved).toBe(true);
    expect(mergeJobs([job("1")], { jobs: [job("9")] }).moved).toBe(true);
    const gone = mergeJobs([job("1"), job("2")], { gone: ["1"] });
    expect(gone.moved).toBe(true);
    expect(labels(gone.jobs)).toEqual(["2"]);
  });
  test("stays as it is without changes", () => expect(mergeJobs([job("1")], {})).toEqual({ jobs: [job("1")], moved: false }));
});

describe("the status", () => {
  test("lists active jobs first and drops those that ended", () => {
    const before = status([job("1"), job("2", { state: "queued" })]);
    const after = mergeStatus(before, { jobs: [job("1", { state: "done" }), job("2", { state: "running" }), job("3", { state: "held" })], counts: { active: 1, waiting: 0, held: 1 } });
    expect(labels(after.jobs)).toEqual(["2", "3"]);
    expect(after.counts).toEqual({ active: 1, waiting: 0, held: 1 });
  });
  test("keeps devices that did not change, in their order", () => {
    const before = status([], [device("a"), device("b")]);
    const after = mergeStatus(before, { devices: [device("c"), device("a", { utilisation_percent: 90 })] });
    expect(after.devices.map((one) => one.id)).toEqual(["a", "b", "c"]);
    expect(after.devices[0]?.utilisation_percent).toBe(90);
    expect(after.devices[1]).toBe(before.devices[1]);
  });
  test("forgets the expected end only if that is said", () => {
    const before = { ...status([]), expected_empty: "2026-11-17T13:00:00Z" };
    expect(mergeStatus(before, {}).expected_empty).toBe("2026-11-17T13:00:00Z");
    expect(mergeStatus(before, { expected_empty: null }).expected_empty).toBeNull();
  });
});
