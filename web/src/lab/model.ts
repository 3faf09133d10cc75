/** What the page of the group shows of a GPU and of a user. */

import { clock, moment } from "../format";
import type { LabBooking, LabGpu, LabJob, LabPage, LabUser, LabWaiting, LabWeeks } from "../types";

/** How far the lanes of the GPUs look ahead. */
export const HOURS_AHEAD = 24;
/** A GPU that does less is idle. */
const LEAST_PERCENT = 5;

/** The jobs of one user on a GPU. */
export interface Holder {
  user: string;
  jobs: LabJob[];
  /** When the last of them ends, in milliseconds; null if that is not known of all. */
  end: number | null;
  /** Whether the end is that of time limits. */
  atMost: boolean;
}

export function holders(jobs: LabJob[]): Holder[] {
  const users = [...new Set(jobs.map(({ user }) => user))];
  return users.map((user) => {
    const own = jobs.filter((job) => job.user === user);
    const ends = own.map(({ expected_end: expected, latest_end: latest }) => moment(expected ?? latest ?? ""));
    const last = Math.max(...ends);
    const atMost = own.some((job) => job.expected_end === null);
    return { user, jobs: own, end: Number.isNaN(last) ? null : last, atMost };
  });
}

export type Use = "free" | "used" | "idle" | "booked" | "drained" | "others";

export const WORDS: Record<Use, string> = {
  free: "free",
  used: "in use",
  idle: "idle",
  booked: "booked",
  drained: "drained",
  others: "not by Stoker",
};

/** What a GPU does now. */
export function useOf(gpu: LabGpu, holds: Holder[], booked: LabBooking[], now: number): Use {
  if (holds.length) {
    const since = Math.min(...holds.flatMap(({ jobs }) => jobs.map((job) => moment(job.since))));
    const settled = now - since > 5 * 60_000; // a job that has just started loads its data
    return settled && gpu.utilisation_percent !== null && gpu.utilisation_percent < LEAST_PERCENT ? "idle" : "used";
  }
  if (gpu.drained) return "drained";
  if (booked.some((booking) => isNow(booking, now))) return "booked";
  return gpu.strangers.length ? "others" : "free";
}

export const isNow = (booking: LabBooking, now: number): boolean =>
  moment(booking.begin) <= now && now < moment(booking.end);

const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/** A time near now: `18:40` within a day before and 20 hours after now, `Sat 18:40` in the next days, or with its date. */
export function near(at: number, now: number): string {
  const [distance, text] = [(at - now) / 3_600_000, clock(at, at)];
  if (distance > -24 && distance < 20) return text;
  return distance >= 20 && distance < 6 * 24 ? `${DAYS[new Date(at).getDay()]} ${text}` : clock(at, now);
}

/** `~18:40`, `by 18:40` for a time limit, and a question mark for an end that is not known. */
export function untilText({ end, atMost }: Holder, now: number): string {
  if (end === null) return "?";
  if (end < now) return "overdue";
  return `${atMost ? "by " : "~"}${near(end, now)}`;
}

/** The part of a lane from `begin` to `end`, as numbers from 0 to 1; an unknown end is beyond the lane. */
export function spanOnLane(begin: number, end: number | null, now: number): [number, number] {
  const place = (at: number): number => Math.max(0, Math.min(1, (at - now) / (HOURS_AHEAD * 3_600_000)));
  return [place(begin), end === null ? 1 : place(end)];
}

/** In words, when the jobs of a user are done. */
export function whenDone(page: LabPage, user: string, now: number): string[] {
  const jobs = page.jobs.filter((job) => job.user === user);
  const waiting = page.waiting.filter((line) => line.user === user);
  const sentences: string[] = [];
  const [own] = holders(jobs);
  if (own) {
    const gpus = [...new Set(jobs.flatMap((job) => job.gpus))];
    const [runs, last] = jobs.length === 1 ? ["1 job runs", "It ends"] : [`${jobs.length} jobs run`, "The last one ends"];
    const when = own.end === null ? "at a time that is not known" : untilText(own, now);
    sentences.push(`${runs} on GPU ${gpus.join(", ")}. ${last} ${when}.`);
  }
  const count = sum(waiting);
  if (count) {
    const since = oldest(waiting);
    sentences.push(`${count} wait${since === null ? "" : `, since ${near(since, now)}`}: stoker status tells when they start.`);
  }
  return sentences.length ? sentences : ["Nothing runs or waits."];
}

export const sum = (waiting: LabWaiting[]): number => waiting.reduce((total, { jobs }) => total + jobs, 0);

export function oldest(waiting: LabWaiting[]): number | null {
  const times = waiting.flatMap(({ since }) => (since === null ? [] : [moment(since)]));
  return times.length ? Math.min(...times) : null;
}

export interface Person {
  user: string;
  counts: LabUser | undefined;
  /** Since when the oldest waiting job is in the queue, if that is known. */
  since: number | null;
  weeks: LabWeeks | undefined;
}

/** All users, those with the most GPU-hours of the last 7 days first. */
export function people(page: LabPage): Person[] {
  const names = new Set([...page.users, ...page.weeks].map(({ user }) => user));
  const lines = [...names].map((user) => ({
    user,
    counts: page.users.find((line) => line.user === user),
    since: oldest(page.waiting.filter((line) => line.user === user)),
    weeks: page.weeks.find((line) => line.user === user),
  }));
  return lines.sort((one, other) => (other.weeks?.gpu_hours[0] ?? 0) - (one.weeks?.gpu_hours[0] ?? 0));
}
