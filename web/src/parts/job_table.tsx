/** The table of jobs, as cards on a narrow screen. */

import type { JSX } from "preact";

import { isActive, isOver, isWaiting } from "../changes";
import { ago, clock, count, duration, moment, left } from "../format";
import { arrayHash, go, jobHash } from "../router";
import { now } from "../state";
import type { JobLine } from "../types";
import { Progress, StateMark, jobMemory } from "./marks";

export function titleOf(job: JobLine): string {
  return job.title || job.name || job.command;
}

/** The page of a job; of a line of several tasks, that of their array. */
export function hashOfLine(job: JobLine): string {
  return job.tasks > 1 ? arrayHash(job.label) : jobHash(job.label);
}

/** What is worth a second line: the reason for waiting or failing, else the command. */
function secondLine(job: JobLine): string {
  if (job.why) return job.tasks > 1 ? `${job.tasks} tasks: ${job.why}` : job.why;
  return titleOf(job) === job.command ? "" : job.command;
}

/** How long it has been running, or ran. */
function Elapsed({ job }: { job: JobLine }): JSX.Element {
  if (job.seconds === null) return <span class="faint">–</span>;
  const running = isActive(job) && job.started !== null && job.last_seen === null;
  return <>{duration(running ? (now.value - moment(job.started as string)) / 1000 : job.seconds)}</>;
}

/** When it will end, start, or ended: `~` is an estimate, `≤` a limit. */
export function whenText(job: JobLine, at: number): string {
  if (isActive(job)) {
    if (job.expected_end !== null) return leftText((moment(job.expected_end) - at) / 1000);
    if (job.limit_seconds !== null) return `≤${left(job.limit_seconds - (job.seconds ?? 0))} left`;
    return "";
  }
  if (isWaiting(job)) return job.expected_start === null ? "" : `starts ~${clock(moment(job.expected_start), at)}`;
  return job.ended ? ago(moment(job.ended), at) : "";
}

function leftText(seconds: number): string {
  return seconds > 0 ? `~${left(seconds)} left` : "longer than expected";
}

/** GPU and memory, which have no columns on a narrow screen. */
function Where({ job }: { job: JobLine }): JSX.Element | null {
  const gpu = job.devices.length ? `GPU ${job.devices.join(",")}` : job.gpus ? count(job.gpus, "GPU") : "";
  return gpu ? <span class="narrow faint">{[gpu, jobMemory(job), ""].join(" · ")}</span> : null;
}

export interface Selection {
  labels: ReadonlySet<string>;
  /** Choose a job or not; with `range` also those between it and the last one. */
  toggle: (job: JobLine, range?: boolean) => void;
  toggleAll: () => void;
}

interface Sorting {
  direction: (column: string) => "ascending" | "descending" | "none";
  by: (column: string) => void;
}

interface Props {
  jobs: JobLine[];
  selection?: Selection | undefined;
  sorting?: Sorting | undefined;
  /** The row that the keyboard is on. */
  current?: number | undefined;
  /** Called when the user clicks into a row. */
  point?: ((index: number) => void) | undefined;
}

const COLUMNS: { key: string; title: string; sort?: string }[] = [
  { key: "id", title: "ID", sort: "id" },
  { key: "mark", title: "State", sort: "state" },
  { key: "title", title: "Job", sort: "name" },
  { key: "gpu", title: "GPU" },
  { key: "memory", title: "Memory", sort: "memory" },
  { key: "part", title: "Progress" },
  { key: "time", title: "Time", sort: "seconds" },
  { key: "when", title: "When" },
];

export function JobTable({ jobs, selection, sorting, current, point }: Props): JSX.Element {
  return (
    <table class="jobs">
      <thead>
        <tr>
          {selection ? (
            <th class="check">
              <input
                type="checkbox"
                aria-label="select all jobs of this page"
                checked={jobs.length > 0 && jobs.every((job) => selection.labels.has(job.label))}
                onChange={selection.toggleAll}
              />
            </th>
          ) : null}
          {COLUMNS.map(({ key, title, sort }) => (
            <th key={key} class={key} aria-sort={sort && sorting ? sorting.direction(sort) : undefined}>
              {sort && sorting ? (
                <button type="button" class="sort" onClick={() => sorting.by(sort)}>
                  {title}
                </button>
              ) : (
                title
              )}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {jobs.map((job, index) => (
          <Row
            key={job.label}
            job={job}
            selection={selection}
            isCurrent={index === current}
            point={() => point?.(index)}
          />
        ))}
      </tbody>
    </table>
  );
}

function Row({
  job,
  selection,
  isCurrent,
  point,
}: {
  job: JobLine;
  selection: Selection | undefined;
  isCurrent: boolean;
  point: () => void;
}): JSX.Element {
  const second = secondLine(job);
  const isBeside = (event: Event): boolean => !(event.target as HTMLElement).closest("a, button, input");
  return (
    <tr
      class={isCurrent ? "current" : ""}
      data-label={job.label}
      onClick={point}
      onDblClick={(event) => isBeside(event) && go(hashOfLine(job))}
    >
      {selection ? (
        <td class="check">
          <input
            type="checkbox"
            aria-label={`select job ${job.label}`}
            checked={selection.labels.has(job.label)}
            onClick={(event) => selection.toggle(job, event.shiftKey)}
          />
        </td>
      ) : null}
      <td class="id" title={job.label}>
        {job.label}
      </td>
      <td class="mark">
        <StateMark state={job.state} />
      </td>
      <td class="title">
        <span class="narrow id">{job.label}</span>
        <a href={hashOfLine(job)} title={titleOf(job)}>
          {titleOf(job)}
        </a>
        {job.group ? <span class="group">{job.group}</span> : null}
        {job.priority ? <span class="group">priority {job.priority}</span> : null}
        <span class={`second ${isOver(job) && job.why ? "why" : ""}`} title={second}>
          {second}
        </span>
      </td>
      <td class="gpu" title={job.devices.join(", ")}>
        {job.devices.length ? (
          job.devices.join(",")
        ) : job.gpus ? (
          <span class="faint">{job.gpus} ×</span>
        ) : (
          <span class="faint">CPU</span>
        )}
      </td>
      <td class="memory">{jobMemory(job)}</td>
      <td class="part">
        {job.progress !== null && isActive(job) ? (
          <Progress part={job.progress} label={`progress of job ${job.label}`} />
        ) : null}
      </td>
      <td class="time">
        <Where job={job} />
        <Elapsed job={job} />
      </td>
      <td class="when">{whenText(job, now.value)}</td>
    </tr>
  );
}
