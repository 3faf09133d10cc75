/** All jobs: filter, sort, choose, act. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";

import { getJobs } from "../api";
import { isMove, mergeJobs } from "../changes";
import { type Filter, STATES, direction, queryOf, readFilter, sortedBy, writeFilter } from "../filters";
import { count } from "../format";
import { useKeys } from "../keys";
import { useLoaded } from "../load";
import { ACTIONS, ACTION_NAMES, ActionButton, actionKeys, ask, targetOf } from "../parts/confirm";
import { Chip, Pages, Search, rowKeys } from "../parts/controls";
import { JOB_CELLS, JobTable, hashOfLine } from "../parts/job_table";
import { Empty, Loading, Problem } from "../parts/placeholder";
import { adjust, go, route } from "../router";
import { session, status, useChanges } from "../state";
import { type ActionName, JOBS_TABLE, type JobLine, type Matching } from "../types";

/** Between two reads of the table: the end of a job shows within a second. */
const REST_MS = 500;

export function Jobs(): JSX.Element {
  const filter = readFilter(route.value.query);
  const change = (next: Partial<Filter>): void =>
    adjust(writeFilter({ ...filter, page: 1, ...next }), next.search === undefined);
  const key = JSON.stringify(queryOf(filter));
  const table = useLoaded(key, () => getJobs(queryOf(filter)), REST_MS);
  const chosen = useSignal<ReadonlyMap<string, JobLine>>(new Map());
  const current = useSignal(-1);
  const all = useSignal<number | null>(null);
  const clear = (): void => {
    chosen.value = new Map();
    all.value = null;
  };
  useEffect(() => {
    clear();
    current.value = -1;
  }, [key]);
  useChanges((changes) => {
    table.update((page) => ({ ...page, jobs: mergeJobs(page.jobs, changes) }));
    if (isMove(changes)) table.again();
  });
  const jobs = table.data?.jobs ?? [];
  const moveTo = useRow(key, jobs, current);
  const toggle = (job: JobLine, range = false): void => {
    all.value = null;
    chosen.value = toggled(chosen.value, jobs, job, range);
  };
  const toggleAll = (): void => {
    all.value = null;
    chosen.value = jobs.every((job) => chosen.value.has(job.label))
      ? new Map()
      : new Map(jobs.map((job) => [job.label, job]));
  };
  const picked = (): JobLine[] => {
    const byLabel = new Map(jobs.map((job) => [job.label, job]));
    const rows = [...chosen.value.keys()].flatMap((label) => byLabel.get(label) ?? []);
    const row = jobs[current.value];
    return rows.length ? rows : row ? [row] : [];
  };
  const matching = (): Matching | undefined => (all.value === null ? undefined : matchingOf(filter, all.value));
  const chooseAll = async (): Promise<void> => {
    all.value = (await getJobs({ ...queryOf(filter), page: 1, tasks: "each" })).total;
  };
  useTableKeys({ jobs, current, moveTo, toggle, picked, clear, matching });
  const canAct = session.value !== null && !session.value.readonly;
  const selection = canAct ? { labels: new Set(chosen.value.keys()), toggle, toggleAll } : undefined;
  const sorting = {
    direction: (column: string) => direction(filter, column),
    by: (column: string) => adjust(writeFilter(sortedBy(filter, column))),
  };
  return (
    <>
      <Filters filter={filter} change={change} />
      {filter.array && table.data ? <ArrayHead array={filter.array} counts={table.data.counts} /> : null}
      {table.error ? <Problem error={table.error} /> : null}
      {table.loading ? (
        <Loading lines={12} />
      ) : jobs.length ? (
        <JobTable
          columns={JOBS_TABLE}
          cells={JOB_CELLS}
          jobs={jobs}
          selection={selection}
          sorting={sorting}
          current={current.value}
          point={moveTo}
        />
      ) : table.error ? null : (
        <NoJobs filter={filter} clear={() => change({ state: "", group: "", array: "", search: "" })} />
      )}
      {table.data ? (
        <Pages {...table.data} turn={(page) => change({ page })} note={` · ${count(table.data.total, "job")}`} />
      ) : null}
      {canAct ? (
        <Bulk
          jobs={chosen.value.size ? picked() : []}
          matching={matching()}
          hasMore={(table.data?.pages ?? 1) > 1 && jobs.every((job) => chosen.value.has(job.label))}
          chooseAll={() => void chooseAll()}
          clear={clear}
        />
      ) : null}
    </>
  );
}

/** The choice after a click on the box of a job; with `range`, all from the last one chosen to it. */
export function toggled(
  chosen: ReadonlyMap<string, JobLine>,
  jobs: JobLine[],
  job: JobLine,
  range: boolean,
): ReadonlyMap<string, JobLine> {
  const next = new Map(chosen);
  const places = [[...chosen.keys()].at(-1), job.label].map((label) => jobs.findIndex((one) => one.label === label));
  const [from = -1, until = -1] = places.sort((one, other) => one - other);
  if (range && from >= 0) for (const one of jobs.slice(from, until + 1)) next.set(one.label, one);
  else if (!next.delete(job.label)) next.set(job.label, job);
  return next;
}

function matchingOf(filter: Filter, found: number): Matching {
  const { group, search, array } = filter;
  return { count: found, state: String(queryOf(filter)["state"] ?? ""), group, search, array };
}

/** The row that the user was on, by the filter, so that it is found again after a look at the job. */
const rows = new Map<string, string>();

function useRow(key: string, jobs: JobLine[], current: { value: number }): (index: number) => void {
  useEffect(() => {
    if (current.value < 0) current.value = jobs.findIndex((job) => job.label === rows.get(key));
  }, [key, jobs.length > 0]);
  return (index) => {
    current.value = index;
    rows.set(key, jobs[index]?.label ?? "");
  };
}

function useTableKeys(table: {
  jobs: JobLine[];
  current: { value: number };
  moveTo: (index: number) => void;
  toggle: (job: JobLine) => void;
  picked: () => JobLine[];
  clear: () => void;
  matching: () => Matching | undefined;
}): void {
  const { jobs, current, moveTo, toggle, picked, clear, matching } = table;
  const show = (row: number): void => {
    moveTo(row);
    document
      .querySelector(`tr[data-label="${CSS.escape(jobs[current.value]?.label ?? "")}"]`)
      ?.scrollIntoView({ block: "nearest" });
  };
  const here = (): JobLine | undefined => jobs[current.value];
  const act = (action: ActionName): void => {
    if (session.value && !session.value.readonly) askFor(action, picked(), matching());
  };
  useKeys({
    ...rowKeys(jobs.length, current.value, show),
    Enter: () => {
      const job = here();
      if (job) go(hashOfLine(job));
    },
    " ": () => {
      const job = here();
      if (job) toggle(job);
    },
    ...actionKeys(picked, act),
    Escape: clear,
  });
}

/** Ask about those of some jobs that the action makes sense for. */
function askFor(action: ActionName, jobs: JobLine[], matching?: Matching): void {
  ask(action, jobs.filter(ACTIONS[action].fits).map(targetOf), matching);
}

function Filters({ filter, change }: { filter: Filter; change: (next: Partial<Filter>) => void }): JSX.Element {
  return (
    <div class="filters">
      <div class="chips" role="group" aria-label="state">
        {STATES.map(({ state, label }) => (
          <Chip key={state} pressed={filter.state === state} press={() => change({ state })}>
            {label}
            {filter.array ? null : <Number state={state} />}
          </Chip>
        ))}
      </div>
      {filter.group ? (
        <Chip press={() => change({ group: "" })} label={`remove the filter for group ${filter.group}`}>
          group {filter.group} ×
        </Chip>
      ) : null}
      {filter.array ? (
        <Chip press={() => change({ array: "", state: "" })} label={`leave array ${filter.array}`}>
          array {filter.array} ×
        </Chip>
      ) : null}
      <Search
        text={filter.search}
        label="search jobs"
        placeholder="Search name, command, id  ( / )"
        search={(search) => change({ search })}
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
      <pre class="command">stoker submit -- python3 train.py --lr 1e-3</pre>
    </Empty>
  );
}

/** How many tasks of an array are in which state. */
function ArrayHead({ array, counts }: { array: string; counts: Record<string, number> }): JSX.Element {
  const total = Object.values(counts).reduce((sum, value) => sum + value, 0);
  return (
    <p class="totals">
      <span>
        <b>Array {array}</b> {count(total, "task")}
      </span>
      {Object.entries(counts).map(([state, value]) => (
        <span key={state}>
          <b>{value.toLocaleString("en")}</b> {state}
        </span>
      ))}
    </p>
  );
}

interface BulkProps {
  jobs: JobLine[];
  /** All jobs of the list, if they are chosen. */
  matching: Matching | undefined;
  /** Whether other pages have jobs, and all of this page are chosen. */
  hasMore: boolean;
  chooseAll: () => void;
  clear: () => void;
}

function Bulk({ jobs, matching, hasMore, chooseAll, clear }: BulkProps): JSX.Element {
  const tasks = jobs.reduce((sum, job) => sum + job.tasks, 0);
  return (
    <div
      class={`bulk ${jobs.length ? "shown" : ""}`}
      role="toolbar"
      aria-label="actions on the chosen jobs"
      aria-hidden={!jobs.length}
      inert={!jobs.length}
    >
      <span class="chosen">
        {count(matching?.count ?? tasks, "job")} chosen
        {hasMore && !matching ? (
          <button type="button" class="quiet" onClick={chooseAll}>
            Choose all that match
          </button>
        ) : null}
      </span>
      {ACTION_NAMES.map((action) => (
        <ActionButton
          key={action}
          action={action}
          disabled={!jobs.some(ACTIONS[action].fits)}
          press={() => askFor(action, jobs, matching)}
        />
      ))}
      <button type="button" class="quiet" onClick={clear} aria-label="clear the choice">
        ×
      </button>
    </div>
  );
}
