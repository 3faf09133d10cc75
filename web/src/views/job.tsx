/** One job: what it is, what it did, its curves and its log. */

import type { ComponentChildren, JSX } from "preact";
import { useRef, useState } from "preact/hooks";

import { getJob, getSeries } from "../api";
import { isActive, isOver } from "../changes";
import { memoryOption, metricOption, progressOption } from "../charts/job";
import { ago, clock, count, duration, known, moment, size } from "../format";
import { useKeys } from "../keys";
import type { Link } from "../links";
import { useLoaded } from "../load";
import { Fact, SmallTable } from "../parts/boxes";
import { Figure } from "../parts/chart";
import { CodeCard } from "../parts/code_card";
import { ACTIONS, ACTION_NAMES, ActionButton, actionKeys, ask, targetOf } from "../parts/confirm";
import { Chip } from "../parts/controls";
import { secondsOf, titleOf, whenText } from "../parts/job_table";
import { LogView } from "../parts/log_view";
import { Progress, StateMark, jobMemory } from "../parts/marks";
import { Pending } from "../parts/placeholder";
import { arrayHash, hashOf } from "../router";
import { now, session, useChanges } from "../state";
import type { ActionName, AttemptLine, JobDetails, Series } from "../types";

const CURVE_HEIGHT = 170;
const SERIES_REST_MS = 3000;
const MOST_POINTS = 2000;
const COPIED_MS = 1500;

export function JobView({ label }: { label: string }): JSX.Element {
  const loaded = useLoaded(`job ${label}`, () => getJob(label), 1000);
  const series = useLoaded(`series ${label}`, () => getSeries(label), SERIES_REST_MS);
  const [chosen, setChosen] = useState<number | null>(null);
  const [links, setLinks] = useState<Link[]>([]);
  const live = useRef<[number, number][]>([]);
  useChanges((changes) => {
    const shown = loaded.data?.label ?? label; // the address may have the number of a task of an array
    const line = changes.jobs.find((job) => job.label === shown);
    if (line && line.held_bytes !== null)
      live.current = [...live.current.slice(-MOST_POINTS), [moment(changes.at) / 1000, line.held_bytes]];
    if (!line && !changes.changed.includes(shown) && !changes.gone.includes(shown)) return;
    loaded.again();
    series.again();
  });
  const job = loaded.data;
  useJobKeys(job);
  if (!job) return <Pending loaded={loaded} lines={12} />;
  const runs = runsOf(job);
  const run = chosen ?? runs.length;
  const running = isActive(job) && run === runs.length;
  return (
    <article class="job">
      <Head job={job} />
      <div class="job-columns">
        <div class="side">
          <Facts job={job} links={links} />
          <Attempts job={job} chosen={run} choose={setChosen} />
          <Events job={job} />
          <Environment job={job} />
        </div>
        <div class="main">
          <Curves
            job={job}
            series={series.data}
            attempt={runs[run - 1]?.number ?? 0}
            live={running ? live.current : []}
          />
          {run === 0 ? (
            <section class="card log">
              <div class="log-tools">
                <h2>Log</h2>
              </div>
              <p class="faint pad">The job has not started yet.</p>
            </section>
          ) : (
            <LogView key={`${label} ${run}`} label={label} attempt={run} live={running} found={setLinks} />
          )}
          {job.code ? <CodeCard key={label} label={label} code={job.code} /> : null}
        </div>
      </div>
    </article>
  );
}

/** The attempts that ran. One that was returned before its start has no log of its own. */
function runsOf(job: JobDetails): AttemptLine[] {
  return job.attempts.filter((attempt) => attempt.why !== "returned");
}

function askAbout(job: JobDetails, action: ActionName): void {
  ask(action, [targetOf(job)]);
}

/** What a user can do with a job; cancelling is the last. */
function actionsFor(job: JobDetails): ActionName[] {
  if (session.value === null || session.value.readonly) return [];
  const fitting = ACTION_NAMES.filter((action) => ACTIONS[action].fits(job));
  return fitting.sort((one, other) => Number(one === "cancel") - Number(other === "cancel"));
}

function useJobKeys(job: JobDetails | null): void {
  const act = (action: ActionName): void => {
    if (job && actionsFor(job).includes(action)) askAbout(job, action);
  };
  useKeys(actionKeys(() => (job ? [job] : []), act));
}

function Head({ job }: { job: JobDetails }): JSX.Element {
  return (
    <header class="job-head">
      <p class="crumbs">
        <a href={hashOf("jobs")}>Jobs</a> /{" "}
        {job.label.includes(".") ? (
          <>
            <a href={arrayHash(job.label)}>array {job.label.split(".")[0]}</a> /{" "}
          </>
        ) : null}
        {job.label} <Copy text={job.label} what="id" />
      </p>
      <div class="job-title">
        <h1>{titleOf(job)}</h1>
        <StateMark state={job.state} />
        {job.progress !== null && isActive(job) ? <Progress part={job.progress} /> : null}
        <div class="buttons">
          {actionsFor(job).map((action) => (
            <ActionButton key={action} action={action} press={() => askAbout(job, action)} />
          ))}
        </div>
      </div>
      {job.failure && isOver(job) && job.state !== "done" ? <p class="failure">{job.failure}</p> : null}
      {job.advice ? <p class="faint">{job.advice}</p> : null}
      {job.why && !isOver(job) ? <p class="why">{job.why}</p> : null}
    </header>
  );
}

function Copy({ text, what }: { text: string; what: string }): JSX.Element {
  const [done, setDone] = useState(false);
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), COPIED_MS);
  };
  return (
    <button type="button" class="copy" aria-label={`copy the ${what}`} onClick={() => void copy()}>
      {done ? "Copied" : "Copy"}
    </button>
  );
}

function exitText(job: { exit_code: number | null; signal: number | null }): string {
  if (job.signal) return `signal ${job.signal}`;
  return job.exit_code === null ? "" : `exit ${job.exit_code}`;
}

function Facts({ job, links }: { job: JobDetails; links: Link[] }): JSX.Element {
  const at = now.value;
  const seconds = secondsOf(job, at);
  return (
    <section class="card facts">
      <h2>
        Command <Copy text={job.command} what="command" />
      </h2>
      <pre class="command">{job.command}</pre>
      <dl>
        <Fact name="Time">
          {seconds === null ? "" : duration(seconds)}
          {job.limit_seconds === null ? "" : ` of at most ${duration(job.limit_seconds)}`}
        </Fact>
        <Fact name={isOver(job) ? "Ended" : "Expected"}>
          {whenText(job, at)}
          {isOver(job) && exitText(job) ? `, ${exitText(job)}` : ""}
        </Fact>
        <Fact name="GPU">
          {job.devices.length ? job.devices.join(", ") : job.gpus ? count(job.gpus, "GPU") : "none"}
        </Fact>
        <Fact name="Memory">
          {job.gpus
            ? `${jobMemory(job)}${job.peak_vram_bytes === null ? "" : `, peak ${size(job.peak_vram_bytes)}`}`
            : ""}
        </Fact>
        <Fact name="Speed">{job.speed === null ? "" : `${Math.round(job.speed * 100)}% of its speed alone`}</Fact>
        <Fact name="Group">{job.group}</Fact>
        <Fact name="Priority">{job.priority ? String(job.priority) : ""}</Fact>
        <Fact name="Place">{job.place === null ? "" : `number ${job.place} of the queue`}</Fact>
        <Fact name="After">{job.after.join(", ")}</Fact>
        <Fact name="Tags">
          {Object.entries(job.tags)
            .map(([name, value]) => `${name}=${value}`)
            .join(", ")}
        </Fact>
        <Fact name="Directory">{job.directory}</Fact>
        <Fact name="Commit">{job.commit}</Fact>
        <Fact name="Submitted">{clock(moment(job.submitted), at, true)}</Fact>
      </dl>
      {links.length ? (
        <ul class="links" aria-label="links in the log">
          {links.map((link) => (
            <li key={link.href}>
              <a href={link.href} target="_blank" rel="noopener noreferrer" title={link.href}>
                {link.label} ↗
              </a>
            </li>
          ))}
        </ul>
      ) : null}
    </section>
  );
}

function attemptEnd(attempt: AttemptLine): string {
  if (attempt.ended === null && !attempt.why) return "running";
  return [attempt.why === "exited" ? "" : attempt.why, exitText(attempt)].filter(Boolean).join(", ");
}

interface AttemptsProps {
  job: JobDetails;
  chosen: number;
  choose: (run: number) => void;
}

function Attempts({ job, chosen, choose }: AttemptsProps): JSX.Element | null {
  const runs = runsOf(job);
  if (!runs.length) return null;
  const number = (attempt: AttemptLine): ComponentChildren => {
    const run = runs.indexOf(attempt) + 1;
    if (runs.length === 1) return run;
    return (
      <Chip pressed={run === chosen} press={() => choose(run)}>
        {run}
      </Chip>
    );
  };
  return (
    <section class="card">
      <h2>{runs.length === 1 ? "Attempt" : "Attempts"}</h2>
      <SmallTable
        name=""
        rows={runs}
        attributes={(_, index) => ({ class: index + 1 === chosen ? "current" : "" })}
        columns={[
          ["#", number],
          ["GPU", (attempt) => attempt.devices.join(",") || "–"],
          ["Time", (attempt) => known(duration, attempt.seconds)],
          ["Peak", (attempt) => known(size, attempt.peak_vram_bytes)],
          ["End", (attempt) => <span title={attempt.note}>{attemptEnd(attempt)}</span>],
        ]}
      />
    </section>
  );
}

function Events({ job }: { job: JobDetails }): JSX.Element {
  return (
    <section class="card">
      <h2>State history</h2>
      <ol class="events">
        {job.events.map((event, index) => (
          <li key={index}>
            <time dateTime={event.at} title={ago(moment(event.at), now.value)}>
              {clock(moment(event.at), now.value, true)}
            </time>
            <span class="word">{event.event}</span>
            <span class="detail">{event.detail}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}

function Environment({ job }: { job: JobDetails }): JSX.Element | null {
  const given = Object.entries(job.variables);
  const names = job.environment ? Object.keys(job.environment).sort() : [];
  if (!given.length && !names.length) return null;
  return (
    <details class="card">
      <summary>Environment: {count(given.length + names.length, "name")}</summary>
      <ul class="names">
        {given.map(([name, value]) => (
          <li key={name}>
            {name}={value}
          </li>
        ))}
        {names.map((name) => (
          <li key={name} class="faint">
            {name}
          </li>
        ))}
      </ul>
    </details>
  );
}

interface CurvesProps {
  job: JobDetails;
  series: Series | null;
  attempt: number;
  /** Memory since the view was opened. */
  live: [number, number][];
}

function Curves({ job, series, attempt, live }: CurvesProps): JSX.Element | null {
  const metrics = Object.entries(series?.metrics ?? {}).filter(([, points]) => points.length);
  const hasMemory = job.gpus > 0 && job.attempts.length > 0;
  const hasProgress = (series?.progress.length ?? 0) > 1;
  if (!hasMemory && !hasProgress && !metrics.length) return null;
  const chart = { height: CURVE_HEIGHT, version: series };
  return (
    <div class="curves">
      {hasMemory ? (
        <Figure
          {...chart}
          caption={
            <>
              GPU memory <span class="key used">used</span> <span class="key dashed">reserved</span>
            </>
          }
          label="GPU memory over time"
          version={`${attempt} ${series?.at} ${live.length}`}
          build={(palette) => memoryOption(series, attempt, live, palette, now.value)}
        />
      ) : null}
      {hasProgress ? (
        <Figure
          {...chart}
          caption="Progress"
          label="progress over time"
          build={(palette) => progressOption(series?.progress ?? [], palette, now.value)}
        />
      ) : null}
      {metrics.map(([name, points], index) => (
        <Figure
          {...chart}
          key={name}
          caption={name}
          label={name}
          build={(palette) => metricOption(name, points, series?.steps ?? true, index + 1, palette, now.value)}
        />
      ))}
    </div>
  );
}
