/** Merges changes from the server into data that the page already has. */

import type { Changes, Job, Status } from "./types";

const ACTIVE = new Set(["starting", "running", "stopping"]);
const WAITING = new Set(["queued", "held", "blocked", "scheduled"]);

export function isActive(job: { state: string }): boolean {
  return ACTIVE.has(job.state);
}

export function isWaiting(job: { state: string }): boolean {
  return WAITING.has(job.state);
}

export function isOver(job: { state: string }): boolean {
  return !isActive(job) && !isWaiting(job);
}

export interface Merged {
  jobs: Job[];
  /** Whether jobs came or went, so that a page of a table must be read again. */
  moved: boolean;
}

/** The lines with those that changed replaced. A line whose state changed may belong elsewhere: it counts as moved. */
export function mergeJobs(lines: Job[], changes: Changes): Merged {
  const changed = new Map((changes.jobs ?? []).map((job) => [job.label, job]));
  const gone = new Set(changes.gone ?? []);
  let moved = false;
  const jobs: Job[] = [];
  for (const line of lines) {
    const next = changed.get(line.label);
    changed.delete(line.label);
    if (gone.has(line.label)) moved = true;
    else if (next) {
      if (next.state !== line.state) moved = true;
      jobs.push(next);
    } else jobs.push(line);
  }
  return { jobs, moved: moved || changed.size > 0 };
}

/** The open jobs of the overview: those that ended leave, new ones join, active ones first. */
export function mergeStatus(status: Status, changes: Changes): Status {
  const gone = new Set(changes.gone ?? []);
  const byLabel = new Map(status.jobs.map((job) => [job.label, job]));
  for (const job of changes.jobs ?? []) byLabel.set(job.label, job);
  const open = [...byLabel.values()].filter((job) => !gone.has(job.label) && !isOver(job));
  return {
    ...status,
    jobs: [...open.filter(isActive), ...open.filter((job) => !isActive(job))],
    counts: changes.counts ?? status.counts,
    today: changes.today ?? status.today,
    expected_empty: changes.expected_empty === undefined ? status.expected_empty : changes.expected_empty,
    devices: mergeDevices(status.devices, changes.devices),
  };
}

function mergeDevices(known: Status["devices"], changed: Changes["devices"]): Status["devices"] {
  if (!changed?.length) return known;
  const byId = new Map(changed.map((device) => [device.id, device]));
  const merged = known.map((device) => byId.get(device.id) ?? device);
  const ids = new Set(known.map((device) => device.id));
  return [...merged, ...changed.filter((device) => !ids.has(device.id))];
}
