/** The past: GPU-hours, outcomes, waiting and memory, and the jobs themselves. */

import type { EChartsType } from "echarts/core";
import type { JSX } from "preact";

import { getHistory, getUsage } from "../api";
import { OTHERS, daysOption, daysTable, groupName, memoryOption, waitingOption } from "../charts/history";
import { colourName } from "../charts/palette";
import { ago, count, duration, hours, moment, size, span } from "../format";
import { useLoaded } from "../load";
import { Entry, Figure, Heads } from "../parts/boxes";
import { Chart } from "../parts/chart";
import { Choices, Pages, Search } from "../parts/controls";
import { StateMark } from "../parts/marks";
import { Empty, Loading, Problem } from "../parts/placeholder";
import { adjust, go, hashOf, jobHash, route } from "../router";
import { now, useChanges } from "../state";
import { type PastLine, RESULTS, TONES, type Usage, type UserLine } from "../types";

const PERIODS = ["1d", "7d", "30d", "90d"];
const CHART_HEIGHT = 270;
const USAGE_REST_MS = 10_000;

export function History(): JSX.Element {
  const query = route.value.query;
  const since = query.get("since") ?? "7d";
  const search = query.get("search") ?? "";
  const page = Math.max(1, Number(query.get("page") ?? 1) || 1);
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
        {data ? <Totals usage={data} /> : null}
      </div>
      {usage.error ? <Problem error={usage.error} /> : null}
      {usage.loading ? <Loading lines={8} /> : null}
      {data ? <Charts usage={data} /> : null}
      <Past past={past.data} search={search} change={change} />
    </>
  );
}

function Totals({ usage }: { usage: Usage }): JSX.Element {
  return (
    <p class="totals">
      <span>
        <b>{hours(usage.gpu_hours)}</b> GPU-hours
      </span>
      <span>
        <b>{hours(usage.saved_gpu_hours)}</b> saved by sharing, at most
      </span>
    </p>
  );
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
  return (
    <div class="charts">
      <Figure caption="GPU-hours per day and group">
        {usage.days.length ? (
          <>
            <Chart
              label="GPU-hours per day and group"
              height={CHART_HEIGHT}
              version={usage}
              build={(palette) => daysOption(usage, palette)}
            />
            <div class="legend">
              {daysTable(usage).groups.map((group) => (
                <Entry key={group} colour={group === OTHERS ? "line" : colourName(usage.colours[group])}>
                  {group === OTHERS ? OTHERS : groupName(group)}
                </Entry>
              ))}
            </div>
          </>
        ) : (
          <Empty title="No job used a GPU in this period." />
        )}
      </Figure>
      <Groups usage={usage} />
      <Figure caption="Waiting against run time">
        {ran ? (
          <Chart
            label="waiting time against run time"
            height={CHART_HEIGHT}
            version={usage}
            ready={openJob}
            build={(palette) => waitingOption(usage, palette)}
          />
        ) : (
          <Empty title="No job ran in this period." />
        )}
      </Figure>
      <Figure caption="Peak against reserved memory, per GPU">
        {measured ? (
          <Chart
            label="peak against reserved memory"
            height={CHART_HEIGHT}
            version={usage}
            ready={openJob}
            build={(palette) => memoryOption(usage, palette)}
          />
        ) : (
          <Empty title="No job with a reservation was measured.">
            <p>
              Reserve memory so that jobs share GPUs: <code>stoker submit -m 8G ...</code>
            </p>
          </Empty>
        )}
      </Figure>
    </div>
  );
}

const OUTCOMES = ["good", "bad", "faint"].flatMap((tone) => RESULTS.filter((result) => TONES[result] === tone));

function Outcomes({ outcomes }: { outcomes: Record<string, number> }): JSX.Element {
  const total = Object.values(outcomes).reduce((sum, value) => sum + value, 0);
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
  const total = Object.values(usage.outcomes).reduce((sum, value) => sum + value, 0);
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
      <div class="scroll">
        <table class="small">
          <Heads
            columns={[
              ["", "Group"],
              ["right", "GPU-hours"],
              ["bar", <span class="unseen">share</span>],
              ["", "Waited"],
              ["", "Ran"],
            ]}
          />
          <tbody>
            {usage.groups.slice(0, 12).map((group) => (
              <tr key={group.group}>
                <td>
                  {group.group ? (
                    <a href={hashOf("jobs", "", { group: group.group, state: "all" })}>{group.group}</a>
                  ) : (
                    <span class="faint">{groupName("")}</span>
                  )}
                </td>
                <td class="right">{hours(group.gpu_hours)}</td>
                <td class="bar">
                  <span class="hours-bar" style={{ width: `${(100 * group.gpu_hours) / most}%` }} />
                </td>
                <td>{group.median_wait_seconds === null ? "–" : span(group.median_wait_seconds)}</td>
                <td>{group.median_run_seconds === null ? "–" : duration(group.median_run_seconds)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <Users users={usage.users} />
    </section>
  );
}

function Users({ users }: { users: UserLine[] }): JSX.Element | null {
  if (!users.length) return null;
  return (
    <>
      <h2>Users now</h2>
      <div class="scroll">
        <table class="small">
          <Heads columns={["User", "Running", "GPUs", "Memory", "Recent GPU-h"].map((title) => ["", title])} />
          <tbody>
            {users.map((user) => (
              <tr key={user.user}>
                <td>
                  {user.user}
                  {user.you ? <span class="faint"> (you)</span> : null}
                </td>
                <td>{user.running}</td>
                <td>{user.gpus}</td>
                <td>{user.vram_bytes === null ? "whole GPUs" : size(user.vram_bytes)}</td>
                <td>{user.recent_gpu_hours === null ? "–" : hours(user.recent_gpu_hours)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
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
        <PastTable jobs={past.jobs} />
      ) : (
        <Empty title="No job ended in this period." />
      )}
      {past ? <Pages {...past} turn={(page) => change({ search, page }, true)} words={["Newer", "Older"]} /> : null}
    </section>
  );
}

const COLUMNS: [string, string][] = [
  ["id", "ID"],
  ["mark", "State"],
  ["title", "Job"],
  ["gpu", "GPU"],
  ["memory", "Peak"],
  ["hours", "GPU-h"],
  ["time", "Ran"],
  ["when", "Ended"],
];

function PastTable({ jobs }: { jobs: PastLine[] }): JSX.Element {
  return (
    <table class="jobs">
      <Heads columns={COLUMNS} />
      <tbody>
        {jobs.map((job) => (
          <tr key={job.label}>
            <td class="id">{job.label}</td>
            <td class="mark">
              <StateMark state={job.state} />
            </td>
            <td class="title">
              <span class="narrow id">{job.label}</span>
              <a href={jobHash(job.label)} title={job.title || job.name || job.command}>
                {job.title || job.name || job.command}
              </a>
              {job.group ? <span class="group">{job.group}</span> : null}
              <span class={`second ${job.note ? "why" : ""}`} title={job.note || job.command}>
                {job.note || job.command}
              </span>
            </td>
            <td class="gpu" title={job.devices.join(", ")}>{job.devices.join(",") || <span class="faint">–</span>}</td>
            <td class="memory">{job.peak_vram_bytes === null ? "–" : size(job.peak_vram_bytes)}</td>
            <td class="hours">{hours(job.gpu_hours)}</td>
            <td class="time">
              {job.devices.length ? (
                <span class="narrow faint">{`GPU ${job.devices.join(",")} · ${size(job.peak_vram_bytes)} · `}</span>
              ) : null}
              {job.run_seconds === null ? "–" : duration(job.run_seconds)}
            </td>
            <td class="when">{ago(moment(job.ended), now.value)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
