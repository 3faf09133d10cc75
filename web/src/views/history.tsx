/** The past: GPU-hours, outcomes, waiting and memory, and the jobs themselves. */

import type { EChartsType } from "echarts/core";
import type { JSX } from "preact";

import { getHistory, getUsage } from "../api";
import { sumOf } from "../changes";
import { OTHERS, daysOption, daysTable, groupName, memoryOption, waitingOption } from "../charts/history";
import { colourName } from "../charts/palette";
import { count, duration, hours, known, size, span } from "../format";
import { useLoaded } from "../load";
import { type Column, Entry, SmallTable, Totals } from "../parts/boxes";
import { Figure } from "../parts/chart";
import { Choices, Pages, Search } from "../parts/controls";
import { JobTable, PAST_CELLS } from "../parts/job_table";
import { StateMark } from "../parts/marks";
import { Empty, Loading, Pending } from "../parts/placeholder";
import { adjust, go, hashOf, jobHash, pageOf, route } from "../router";
import { useChanges } from "../state";
import { HISTORY_TABLE, type PastLine, RESULTS, TONES, type Usage, type UserLine } from "../types";

const PERIODS = ["1d", "7d", "30d", "90d"];
const CHART_HEIGHT = 270;
const USAGE_REST_MS = 10_000;

export function History(): JSX.Element {
  const query = route.value.query;
  const since = query.get("since") ?? "7d";
  const search = query.get("search") ?? "";
  const page = pageOf(query);
  const usage = useLoaded(`usage ${since}`, () => getUsage({ since }), USAGE_REST_MS);
  const past = useLoaded(`history ${since} ${search} ${page}`, () => getHistory({ since, search, page }), 2000);
  useChanges((changes) => {
    if (!changes.changed.length) return;
    usage.again();
    past.again();
  });
  const change = (next: { since?: string; search?: string; page?: number }, isStep = false): void => {
    const { page: turned = 1, ...rest } = next;
    adjust({ since, search, ...rest, page: turned > 1 ? String(turned) : "" }, isStep);
  };
  const data = usage.data;
  return (
    <>
      <div class="filters">
        <Choices label="period" words={PERIODS} chosen={since} choose={(period) => change({ since: period }, true)} />
        {data ? <Totals amounts={totalsOf(data)} /> : null}
      </div>
      <Pending loaded={usage} lines={8} />
      {data ? <Charts usage={data} /> : null}
      <Past past={past.data} search={search} change={change} />
    </>
  );
}

function totalsOf({ gpu_hours, saved_gpu_hours }: Usage): [string, string][] {
  return [
    [hours(gpu_hours), "GPU-hours"],
    [hours(saved_gpu_hours), "saved by sharing, at most"],
  ];
}

function openJob(chart: EChartsType): void {
  chart.on("click", (event) => {
    const { job } = (event.data ?? {}) as { job?: { label: string } };
    if (job) go(jobHash(job.label));
  });
}

function Charts({ usage }: { usage: Usage }): JSX.Element {
  const measured = usage.jobs.some((job) => job.peak_vram_bytes !== null && job.reserved_bytes !== null);
  const ran = usage.jobs.some((job) => job.run_seconds !== null);
  const chart = { height: CHART_HEIGHT, version: usage };
  return (
    <div class="charts">
      <Figure
        {...chart}
        caption="GPU-hours per day and group"
        label="GPU-hours per day and group"
        build={(palette) => daysOption(usage, palette)}
        empty={usage.days.length ? null : <Empty title="No job used a GPU in this period." />}
        legend={daysTable(usage).groups.map((group) => (
          <Entry key={group} colour={group === OTHERS ? "line" : colourName(usage.colours[group])}>
            {group === OTHERS ? OTHERS : groupName(group)}
          </Entry>
        ))}
      />
      <Groups usage={usage} />
      <Figure
        {...chart}
        caption="Waiting against run time"
        label="waiting time against run time"
        ready={openJob}
        build={(palette) => waitingOption(usage, palette)}
        empty={ran ? null : <Empty title="No job ran in this period." />}
      />
      <Figure
        {...chart}
        caption="Peak against reserved memory, per GPU"
        label="peak against reserved memory"
        ready={openJob}
        build={(palette) => memoryOption(usage, palette)}
        empty={
          measured ? null : (
            <Empty title="No job with a reservation was measured.">
              <p>
                Reserve memory so that jobs share GPUs: <code>stoker submit -m 8G ...</code>
              </p>
            </Empty>
          )
        }
      />
    </div>
  );
}

const OUTCOMES = ["good", "bad", "faint"].flatMap((tone) => RESULTS.filter((result) => TONES[result] === tone));

function Outcomes({ outcomes }: { outcomes: Record<string, number> }): JSX.Element {
  const total = sumOf(outcomes);
  return (
    <div
      class="outcome-bar"
      role="img"
      aria-label={OUTCOMES.filter((word) => outcomes[word])
        .map((word) => `${outcomes[word]} ${word}`)
        .join(", ")}
    >
      {OUTCOMES.filter((word) => outcomes[word]).map((word) => (
        <span
          key={word}
          class={TONES[word]}
          style={{ width: `${(100 * (outcomes[word] ?? 0)) / total}%` }}
          title={`${outcomes[word]} ${word}`}
        />
      ))}
    </div>
  );
}

function Groups({ usage }: { usage: Usage }): JSX.Element {
  const most = Math.max(0.001, ...usage.groups.map((group) => group.gpu_hours));
  const total = sumOf(usage.outcomes);
  return (
    <section class="card groups">
      <h2>
        Outcomes <span class="faint">{count(total, "job")}</span>
      </h2>
      {total ? <Outcomes outcomes={usage.outcomes} /> : null}
      <p class="outcome-key">
        {OUTCOMES.filter((word) => usage.outcomes[word]).map((word) => (
          <span key={word}>
            <StateMark state={word} /> {usage.outcomes[word]?.toLocaleString("en")}
          </span>
        ))}
      </p>
      <h2>Groups</h2>
      <SmallTable
        name=""
        rows={usage.groups.slice(0, 12)}
        columns={[
          ["Group", ({ group }) => <Group group={group} />],
          ["GPU-hours", (group) => hours(group.gpu_hours), "right"],
          [
            <span class="unseen">share</span>,
            (group) => <span class="hours-bar" style={{ width: `${(100 * group.gpu_hours) / most}%` }} />,
            "bar",
          ],
          ["Waited", (group) => known(span, group.median_wait_seconds)],
          ["Ran", (group) => known(duration, group.median_run_seconds)],
        ]}
      />
      <Users users={usage.users} />
    </section>
  );
}

function Group({ group }: { group: string }): JSX.Element {
  if (!group) return <span class="faint">{groupName("")}</span>;
  return <a href={hashOf("jobs", "", { group, state: "all" })}>{group}</a>;
}

const USER_COLUMNS: Column<UserLine>[] = [
  ["User", ({ user, you }) => [user, you ? <span class="faint"> (you)</span> : null]],
  ["Running", (user) => user.running],
  ["GPUs", (user) => user.gpus],
  ["Memory", (user) => (user.vram_bytes === null ? "whole GPUs" : size(user.vram_bytes))],
  ["Recent GPU-h", (user) => known(hours, user.recent_gpu_hours)],
];

function Users({ users }: { users: UserLine[] }): JSX.Element | null {
  if (!users.length) return null;
  return (
    <>
      <h2>Users now</h2>
      <SmallTable name="" rows={users} columns={USER_COLUMNS} />
    </>
  );
}

interface PastProps {
  past: { jobs: PastLine[]; page: number; pages: number; total: number } | null;
  search: string;
  change: (next: { search?: string; page?: number }, isStep?: boolean) => void;
}

function Past({ past, search, change }: PastProps): JSX.Element {
  return (
    <section class="past">
      <div class="filters">
        <h2>Ended jobs {past ? <span class="faint">{past.total.toLocaleString("en")}</span> : null}</h2>
        <Search
          text={search}
          label="search ended jobs"
          placeholder="Search name, command  ( / )"
          search={(text) => change({ search: text })}
        />
      </div>
      {past === null ? (
        <Loading lines={6} />
      ) : past.jobs.length ? (
        <JobTable columns={HISTORY_TABLE} cells={PAST_CELLS} jobs={past.jobs} />
      ) : (
        <Empty title="No job ended in this period." />
      )}
      {past ? <Pages {...past} turn={(page) => change({ search, page }, true)} words={["Newer", "Older"]} /> : null}
    </section>
  );
}
