import { expect, test } from "vitest";

import { holders, near, people, spanOnLane, untilText, useOf, whenDone } from "../src/lab/model";
import type { LabBooking, LabGpu, LabJob, LabPage } from "../src/types";

const NOW = new Date(2026, 10, 19, 22, 0).getTime();
const at = (hours: number): string => new Date(NOW + hours * 3_600_000).toISOString();
const GPU: LabGpu = {
  label: "0",
  model: "A100",
  memory_bytes: 40 * 2 ** 30,
  used_bytes: 0,
  utilisation_percent: 90,
  drained: false,
  strangers: [],
};

function job(user: string, since: number, expected: number | null, latest: number | null = null): LabJob {
  const [end, limit] = [expected, latest].map((hours) => (hours === null ? null : at(hours)));
  return {
    user,
    you: false,
    gpus: ["0"],
    memory_bytes: null,
    since: at(since),
    expected_end: end ?? null,
    latest_end: limit ?? null,
    utilisation_percent: null,
    job: "1",
    pid: 1,
    title: "",
  };
}

const booking = (begin: number, end: number): LabBooking => ({
  user: "ben",
  gpus: ["0"],
  begin: at(begin),
  end: at(end),
  why: "",
});

test("a time is as short as it can be without doubt", () => {
  expect([-3, 4, 22, 24 * 8, -30].map((hours) => near(Date.parse(at(hours)), NOW))).toEqual([
    "19:00",
    "02:00",
    "Fri 20:00",
    "27 Nov 22:00",
    "18 Nov 16:00",
  ]);
});

test("a user has a GPU until the last of the jobs there ends, if that is known of all", () => {
  const texts = (jobs: LabJob[]): string[] => holders(jobs).map((holder) => untilText(holder, NOW));
  expect(texts([job("anna", -1, 2), job("anna", -1, 1), job("ben", -1, null, 3)])).toEqual(["~00:00", "by 01:00"]);
  expect(texts([job("anna", -1, 2), job("anna", -1, null)])).toEqual(["?"]);
  expect(texts([job("anna", -3, -1)])).toEqual(["overdue"]);
});

test("a GPU is idle if it is held and does nothing, and not while its jobs start", () => {
  const use = (gpu: Partial<LabGpu>, jobs: LabJob[] = [], booked: LabBooking[] = []): string =>
    useOf({ ...GPU, ...gpu }, holders(jobs), booked, NOW);
  const lazy = { utilisation_percent: 0 };
  expect([use({}, [job("anna", -1, 1)]), use(lazy, [job("anna", -1, 1)])]).toEqual(["used", "idle"]);
  expect([use(lazy, [job("anna", -0.05, 1)]), use(lazy)]).toEqual(["used", "free"]);
  expect(use({ utilisation_percent: null }, [job("anna", -1, 1)])).toBe("used");
  expect([use({}, [], [booking(-1, 1)]), use({}, [], [booking(1, 2)])]).toEqual(["booked", "free"]);
  expect([use({ drained: true }), use({ strangers: ["eve"] })]).toEqual(["drained", "others"]);
});

test("a lane shows the next 24 hours", () => {
  const place = (begin: number, end: number | null): number[] =>
    spanOnLane(Date.parse(at(begin)), end === null ? null : Date.parse(at(end)), NOW);
  expect([place(-5, 6), place(12, 60), place(30, 40), place(0, null)]).toEqual([
    [0, 0.25],
    [0.5, 1],
    [1, 1],
    [0, 1],
  ]);
});

test("a user reads when the own jobs are done", () => {
  const waiting = { user: "anna", you: false, jobs: 12, gpus: 1, memory_bytes: null, since: at(-3) };
  const weeks = { user: "ben", gpu_hours: [3], waiting_hours: 0, idle_gpu_hours: null };
  const page: LabPage = {
    schema: "",
    at: at(0),
    host: "lab7",
    simulated: false,
    messages: [],
    gpus: [GPU],
    users: [{ user: "anna", you: false, running: 1, gpus: 1, waiting: 12 }],
    jobs: [job("anna", -1, 2), job("anna", -1, 4)],
    waiting: [waiting],
    weeks: [weeks],
    bookings: [],
  };
  expect(whenDone(page, "anna", NOW)).toEqual([
    "2 jobs run on GPU 0. The last one ends ~02:00.",
    "12 wait, since 19:00: stoker status tells when they start.",
  ]);
  expect(whenDone(page, "ben", NOW)).toEqual(["Nothing runs or waits."]);
  expect(people(page).map(({ user }) => user)).toEqual(["ben", "anna"]);
});
