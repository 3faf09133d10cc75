/** All jobs: filter, sort, choose, act. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { getJobs } from "../api";
import { isActive, isMove, isOver, isWaiting, mergeJobs } from "../changes";
import { type Filter, STATES, direction, queryOf, readFilter, sortedBy, writeFilter } from "../filters";
import { count } from "../format";
import { useKeys } from "../keys";
import { useLoaded } from "../load";
import { ask } from "../parts/confirm";
import { JobTable, titleOf } from "../parts/job_table";
import { Empty, Loading, Problem } from "../parts/placeholder";
import { adjust, go, jobHash, route } from "../router";
import { session, status, useChanges } from "../state";
import type { ActionName, Job } from "../types";

const TYPING_MS = 250;
/** Between two reads of the table: the end of a job shows within a second. */
const REST_MS = 500;

export function Jobs(): JSX.Element {
  const filter = readFilter(route.value.query);
  const change = (next: Partial<Filter>): void => adjust(writeFilter({ ...filter, page: 1, ...next }));
  const key = JSON.stringify(queryOf(filter));
  const table = useLoaded(key, () => getJobs(queryOf(filter)), REST_MS);
  const chosen = useSignal<ReadonlyMap<string, Job>>(new Map());
  const current = useSignal(-1);
  useEffect(() => {
    chosen.value = new Map();
    current.value = -1;
  }, [key]);
  useChanges((changes) => {
    table.update((page) => ({ ...page, jobs: mergeJobs(page.jobs, changes) }));
    if (isMove(changes)) table.again();
  });
  const jobs = table.data?.jobs ?? [];
  const toggle = (job: Job): void => {
    const next = new Map(chosen.value);
    if (!next.delete(job.label)) next.set(job.label, job);
    chosen.value = next;
  };
  const toggleAll = (): void => {
    chosen.value = jobs.every((job) => chosen.value.has(job.label))
      ? new Map()
      : new Map(jobs.map((job) => [job.label, job]));
  };
  const picked = (): Job[] => {
    const byLabel = new Map(jobs.map((job) => [job.label, job]));
    const rows = [...chosen.value.keys()].flatMap((label) => byLabel.get(label) ?? []);
    const row = jobs[current.value];
    return rows.length ? rows : row ? [row] : [];
  };
  useTableKeys({ jobs, current, toggle, picked });
  const canAct = session.value !== null && !session.value.readonly;
  const selection = canAct ? { labels: new Set(chosen.value.keys()), toggle, toggleAll } : undefined;
  const sorting = {
    direction: (column: string) => direction(filter, column),
    by: (column: string) => adjust(writeFilter(sortedBy(filter, column))),
  };
  return (
    <>
      <Filters filter={filter} change={change} />
      {table.error ? <Problem error={table.error} /> : null}
      {table.loading ? (
        <Loading lines={12} />
      ) : jobs.length ? (
        <JobTable jobs={jobs} selection={selection} sorting={sorting} current={current.value} />
      ) : table.error ? null : (
        <NoJobs filter={filter} clear={() => change({ state: "", group: "", search: "" })} />
      )}
      {table.data && table.data.pages > 1 ? <Pages {...table.data} turn={(page) => change({ page })} /> : null}
      {canAct ? <Bulk jobs={chosen.value.size ? picked() : []} clear={() => (chosen.value = new Map())} /> : null}
    </>
  );
}

function useTableKeys(table: {
  jobs: Job[];
  current: { value: number };
  toggle: (job: Job) => void;
  picked: () => Job[];
}): void {
  const { jobs, current, toggle, picked } = table;
  const move = (step: number): void => {
    current.value = Math.min(jobs.length - 1, Math.max(0, current.value + step));
    document
      .querySelector(`tr[data-label="${CSS.escape(jobs[current.value]?.label ?? "")}"]`)
      ?.scrollIntoView({ block: "nearest" });
  };
  const here = (): Job | undefined => jobs[current.value];
  const act = (action: ActionName, fits: (job: Job) => boolean): void => {
    if (session.value && !session.value.readonly) askFor(action, picked().filter(fits));
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: () => {
      const job = here();
      if (job) go(jobHash(job.label));
    },
    " ": () => {
      const job = here();
      if (job) toggle(job);
    },
    c: () => act("cancel", (job) => !isOver(job)),
    r: () => act("retry", isOver),
    p: () => act(picked().every((job) => job.state === "held") ? "release" : "hold", isWaiting),
    "+": () => act("priority", isWaiting),
  });
}

function askFor(action: ActionName, jobs: Job[]): void {
  ask(
    action,
    jobs.map((job) => ({
      label: job.label,
      title: titleOf(job),
      state: job.state,
      tasks: job.tasks,
      priority: job.priority,
    })),
  );
}

function Filters({ filter, change }: { filter: Filter; change: (next: Partial<Filter>) => void }): JSX.Element {
  const [search, setSearch] = useState(filter.search);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => setSearch(filter.search), [filter.search]);
  const typed = (text: string): void => {
    setSearch(text);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ search: text.trim() }), TYPING_MS);
  };
  return (
    <div class="filters">
      <div class="chips" role="group" aria-label="state">
        {STATES.map(({ state, label }) => (
          <button
            key={state}
            type="button"
            class="chip"
            aria-pressed={filter.state === state}
            onClick={() => change({ state })}
          >
            {label}
            <Number state={state} />
          </button>
        ))}
      </div>
      {filter.group ? (
        <button
          type="button"
          class="chip"
          onClick={() => change({ group: "" })}
          aria-label={`remove the filter for group ${filter.group}`}
        >
          group {filter.group} ×
        </button>
      ) : null}
      <input
        type="search"
        placeholder="Search name, command, id  ( / )"
        aria-label="search jobs"
        value={search}
        onInput={(event) => typed(event.currentTarget.value)}
      />
    </div>
  );
}

/** How many jobs a chip stands for, where the status tells it. */
function Number({ state }: { state: string }): JSX.Element | null {
  const counts = status.value?.counts;
  if (!counts) return null;
  const known: Record<string, number> = {
    "": counts.active + counts.waiting + counts.held,
    running: counts.active,
    waiting: counts.waiting,
    held: counts.held,
  };
  const value = known[state];
  return value === undefined ? null : <span class="number">{value.toLocaleString("en")}</span>;
}

function NoJobs({ filter, clear }: { filter: Filter; clear: () => void }): JSX.Element {
  if (filter.search || filter.group || filter.state) {
    return (
      <Empty title="No job matches.">
        <p>
          <button type="button" onClick={clear}>
            Show all open jobs
          </button>
        </p>
      </Empty>
    );
  }
  return (
    <Empty title="The queue is empty.">
      <p>Add a job in a terminal:</p>
      <pre class="command">stoker submit -- python train.py --lr 1e-3</pre>
    </Empty>
  );
}

function Pages({
  page,
  pages,
  total,
  turn,
}: {
  page: number;
  pages: number;
  total: number;
  turn: (page: number) => void;
}): JSX.Element {
  return (
    <nav class="pages" aria-label="pages">
      <button type="button" disabled={page <= 1} onClick={() => turn(page - 1)}>
        Previous
      </button>
      <span>
        page {page.toLocaleString("en")} of {pages.toLocaleString("en")} · {count(total, "job")}
      </span>
      <button type="button" disabled={page >= pages} onClick={() => turn(page + 1)}>
        Next
      </button>
    </nav>
  );
}

function Bulk({ jobs, clear }: { jobs: Job[]; clear: () => void }): JSX.Element {
  const tasks = jobs.reduce((sum, job) => sum + job.tasks, 0);
  const open = jobs.filter((job) => !isOver(job));
  const over = jobs.filter(isOver);
  const waiting = jobs.filter((job) => isWaiting(job) && job.state !== "held");
  const held = jobs.filter((job) => job.state === "held");
  const editable = jobs.filter((job) => isWaiting(job) && !isActive(job));
  const action = (name: ActionName, text: string, fitting: Job[], danger = false): JSX.Element => (
    <button
      type="button"
      class={danger ? "danger" : ""}
      disabled={!fitting.length}
      onClick={() => askFor(name, fitting)}
    >
      {text}
    </button>
  );
  return (
    <div
      class={`bulk ${jobs.length ? "shown" : ""}`}
      role="toolbar"
      aria-label="actions on the chosen jobs"
      aria-hidden={!jobs.length}
      inert={!jobs.length}
    >
      <span class="chosen">{count(tasks, "job")} chosen</span>
      {action("cancel", "Cancel", open, true)}
      {action("retry", "Retry", over)}
      {action("hold", "Hold", waiting)}
      {action("release", "Release", held)}
      {action("priority", "Priority", editable)}
      <button type="button" class="quiet" onClick={clear} aria-label="clear the choice">
        ×
      </button>
    </div>
  );
}
