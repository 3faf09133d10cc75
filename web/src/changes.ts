/** Merges changes from the server into data that the page already has. */

import { ACTIVE, type Changes, FAILURES, type JobLine, RESULTS, type Status, WAITING } from "./types";

const isOneOf =
  (states: readonly string[]) =>
  (job: { state: string }): boolean =>
    states.includes(job.state);

export const isActive = isOneOf(ACTIVE);
/** Waits, by itself or since a user holds it. */
export const isWaiting = isOneOf([...WAITING, "held"]);
export const isOver = isOneOf(RESULTS);
export const isFailure = isOneOf(FAILURES);

/** How many jobs are in some of the states. */
export function countIn(states: readonly string[], counts: Record<string, number>): number {
  return states.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
}

/** How many jobs are in all states. */
export function sumOf(counts: Record<string, number>): number {
  return countIn(Object.keys(counts), counts);
}

/** The lines of a page with those that changed replaced. */
export function mergeJobs(lines: JobLine[], changes: Changes): JobLine[] {
  const changed = new Map(changes.jobs.map((job) => [job.label, job]));
  return lines.map((line) => changed.get(line.label) ?? line);
}

/** Whether jobs may have come, gone or changed their place, so that a page of a table must be read again. */
export function isMove(changes: Changes): boolean {
  return changes.more || changes.changed.length > 0 || changes.gone.length > 0;
}

/** The status with what changed: those that ended leave, new ones join, active ones first. */
export function mergeStatus(status: Status, changes: Changes): Status {
  const gone = new Set(changes.gone);
  const byLabel = new Map(status.jobs.map((job) => [job.label, job]));
  for (const job of changes.jobs) byLabel.set(job.label, job);
  const open = [...byLabel.values()].filter((job) => !gone.has(job.label) && !isOver(job));
  const { at, engine, counts, hidden, today, expected_empty, notes, failures } = changes;
  return {
    ...status,
    at,
    engine,
    counts,
    hidden,
    today,
    expected_empty,
    notes,
    failures,
    jobs: [...open.filter(isActive), ...open.filter((job) => !isActive(job)).sort(byPlace)],
    devices: mergeDevices(status.devices, changes.devices),
  };
}

/** Waiting jobs in the order in which they will start, as far as that is known. */
function byPlace(one: JobLine, other: JobLine): number {
  return (one.place ?? Infinity) - (other.place ?? Infinity) || one.id - other.id;
}

function mergeDevices(known: Status["devices"], changed: Changes["devices"]): Status["devices"] {
  if (!changed.length) return known;
  const byId = new Map(changed.map((device) => [device.id, device]));
  const merged = known.map((device) => byId.get(device.id) ?? device);
  const ids = new Set(known.map((device) => device.id));
  return [...merged, ...changed.filter((device) => !ids.has(device.id))];
}
