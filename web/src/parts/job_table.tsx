/** A table of jobs with the columns that the code lists, as cards on a narrow screen. */

import type { ComponentChildren, JSX } from "preact";

import { isActive, isOver, isWaiting } from "../changes";
import { ago, clock, count, duration, hours, known, moment, left, size } from "../format";
import { arrayHash, go, jobHash } from "../router";
import { now } from "../state";
import type { JobColumn, JobLine, PastLine } from "../types";
import { Second } from "./boxes";
import { Progress, StateMark, jobMemory } from "./marks";

type Line = JobLine | PastLine;

export function titleOf(job: { title: string; name: string; command: string }): string {
  return job.title || job.name || job.command;
}

/** The page of a job; of a line of several tasks, that of their array. */
export function hashOfLine(job: Line): string {
  return job.tasks > 1 ? arrayHash(job.label) : jobHash(job.label);
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

/** How long it has been running at a time, or ran. */
export function secondsOf(job: JobLine, at: number): number | null {
  const running = isActive(job) && job.started !== null && job.last_seen === null;
  return running ? (at - moment(job.started as string)) / 1000 : job.seconds;
}

// -- cells

/** The text of a field; a column needs no other cell. */
const TEXTS: Record<JobColumn<Line>["kind"], (value: never) => string> = {
  bytes: size,
  seconds: duration,
  percent: (value: number) => `${value}%`,
  hours,
  time: (value: string) => ago(moment(value), now.value),
  list: (value: string[]) => value.join(","),
  text: String,
};

export function fieldText<L extends Line>({ field, kind }: JobColumn<L>, job: L): string {
  const value = field === "" ? null : job[field];
  return value === null ? "–" : TEXTS[kind](value as never);
}

const Dash = (): JSX.Element => <span class="faint">–</span>;

/** GPU and memory, which have no columns on a narrow screen. */
const Where = ({ gpu, memory }: { gpu: string; memory: string }): JSX.Element | null =>
  gpu ? <span class="narrow faint">{`${gpu} · ${memory} · `}</span> : null;

interface NameProps {
  job: Line;
  priority?: number;
  second: string;
  isBad: boolean;
}

function Name({ job, priority = 0, second, isBad }: NameProps): JSX.Element {
  return (
    <>
      <span class="narrow id">{job.label}</span>
      <a href={hashOfLine(job)} title={titleOf(job)}>
        {titleOf(job)}
      </a>
      {job.group ? <span class="group">{job.group}</span> : null}
      {priority ? <span class="group">priority {priority}</span> : null}
      <Second text={second} kind={isBad ? "why" : ""} />
    </>
  );
}

/** What is worth a second line: the reason for waiting or failing, else the command. */
function secondLine(job: JobLine): string {
  if (job.why) return job.tasks > 1 ? `${job.tasks} tasks: ${job.why}` : job.why;
  return titleOf(job) === job.command ? "" : job.command;
}

/** Cells that are more than the text of a field, by the name of their column. */
type Cells<L> = Record<string, (job: L) => ComponentChildren>;

const state = (job: Line): JSX.Element => <StateMark state={job.state} />;

export const JOB_CELLS: Cells<JobLine> = {
  state,
  name: (job) => (
    <Name job={job} priority={job.priority} second={secondLine(job)} isBad={isOver(job) && job.why !== ""} />
  ),
  devices: (job) =>
    job.devices.length ? job.devices.join(",") : <span class="faint">{job.gpus ? `${job.gpus} ×` : "CPU"}</span>,
  memory: jobMemory,
  progress: (job) =>
    job.progress !== null && isActive(job) ? (
      <Progress part={job.progress} label={`progress of job ${job.label}`} />
    ) : null,
  time: (job) => {
    const seconds = secondsOf(job, now.value);
    const gpu = job.devices.length ? `GPU ${job.devices.join(",")}` : job.gpus ? count(job.gpus, "GPU") : "";
    return (
      <>
        <Where gpu={gpu} memory={jobMemory(job)} />
        {seconds === null ? <Dash /> : duration(seconds)}
      </>
    );
  },
  left: (job) => whenText(job, now.value),
};

export const PAST_CELLS: Cells<PastLine> = {
  state,
  name: (job) => <Name job={job} second={job.note || job.command} isBad={job.note !== ""} />,
  devices: (job) => job.devices.join(",") || <Dash />,
  ran: (job) => (
    <>
      <Where gpu={job.devices.length ? `GPU ${job.devices.join(",")}` : ""} memory={size(job.peak_vram_bytes)} />
      {known(duration, job.run_seconds)}
    </>
  ),
};

// -- the table

interface Selection<L> {
  labels: ReadonlySet<string>;
  /** Choose a job or not; with `range` also those between it and the last one. */
  toggle: (job: L, range?: boolean) => void;
  toggleAll: () => void;
}

interface Sorting {
  direction: (column: string) => "ascending" | "descending" | "none";
  by: (column: string) => void;
}

interface Props<L> {
  columns: readonly JobColumn<L>[];
  cells: Cells<L>;
  jobs: L[];
  selection?: Selection<L> | undefined;
  sorting?: Sorting | undefined;
  /** The row that the keyboard is on. */
  current?: number | undefined;
  /** Called when the user clicks into a row. */
  point?: ((index: number) => void) | undefined;
}

export function JobTable<L extends Line>(props: Props<L>): JSX.Element {
  const { columns, jobs, selection, sorting, current, point } = props;
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
          {columns.map((column) => (
            <Head key={column.name} column={column} sorting={column.sort ? sorting : undefined} />
          ))}
        </tr>
      </thead>
      <tbody>
        {jobs.map((job, index) => (
          <Row
            key={job.label}
            {...props}
            job={job}
            isCurrent={index === current}
            choose={() => point?.(index)}
          />
        ))}
      </tbody>
    </table>
  );
}

function classOf({ name, right }: { name: string; right: boolean }): string {
  return `column-${name}${right ? " right" : ""}`;
}

function Head<L>({ column, sorting }: { column: JobColumn<L>; sorting: Sorting | undefined }): JSX.Element {
  const { title, sort } = column;
  return (
    <th class={classOf(column)} aria-sort={sorting?.direction(sort)}>
      {sorting ? (
        <button type="button" class="sort" onClick={() => sorting.by(sort)}>
          {title}
        </button>
      ) : (
        title
      )}
    </th>
  );
}

interface RowProps<L> extends Props<L> {
  job: L;
  isCurrent: boolean;
  choose: () => void;
}

function Row<L extends Line>({ job, columns, cells, selection, isCurrent, choose }: RowProps<L>): JSX.Element {
  const isBeside = (event: Event): boolean => !(event.target as HTMLElement).closest("a, button, input");
  return (
    <tr
      class={isCurrent ? "current" : ""}
      data-label={job.label}
      onClick={choose}
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
      {columns.map((column) => {
        const cell = cells[column.name];
        const isCut = column.name === "id" || column.kind === "list";
        return (
          <td key={column.name} class={classOf(column)} title={isCut ? fieldText(column, job) : undefined}>
            {cell ? cell(job) : fieldText(column, job)}
          </td>
        );
      })}
    </tr>
  );
}
