/** The first view: counts, GPUs, what runs, what is next, what failed. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { getSamples, getUsage } from "../api";
import { countIn, isActive, isWaiting } from "../changes";
import { ago, clock, hours, moment, size } from "../format";
import { useLoaded } from "../load";
import { JobLink, Second, Tile } from "../parts/boxes";
import { MemoryBar, Progress, StateMark } from "../parts/marks";
import { Empty, Loading } from "../parts/placeholder";
import { type Point, Sparkline } from "../parts/sparkline";
import { hashOfLine, titleOf, whenText } from "../parts/job_table";
import { hashOf, jobHash } from "../router";
import { now, status } from "../state";
import { type DeviceLine, FAILURES, type GpuSamples, type JobLine, type Status } from "../types";

const CURVE_HOURS = 2;
const LEAST_CURVE_SECONDS = 300;
const SAMPLES_REST_MS = 60_000;
const MOST_LINES = 8;

export function Overview(): JSX.Element {
  const shown = status.value;
  const samples = useLoaded("samples", () => getSamples(CURVE_HOURS), SAMPLES_REST_MS);
  useEffect(() => {
    const timer = setInterval(samples.again, SAMPLES_REST_MS);
    return () => clearInterval(timer);
  }, []);
  if (!shown) return <Loading lines={10} />;
  return (
    <>
      <Tiles status={shown} />
      <section aria-label="GPUs">
        {shown.devices.length ? (
          <Cards count={shown.devices.length}>
            {shown.devices.map((device) => (
              <GpuCard key={device.id} device={device} jobs={shown.jobs} samples={samples.data} />
            ))}
          </Cards>
        ) : (
          <Empty title="No GPU is known.">
            <p>{shown.notes[0] ?? "Start the engine to detect GPUs: stoker engine start"}</p>
          </Empty>
        )}
      </section>
      <div class="columns">
        <List
          title="Running"
          name="lines"
          jobs={shown.jobs.filter(isActive)}
          total={shown.counts.active}
          state="running"
          line={runningLine}
          empty={<Empty title="No job is running." />}
        />
        <List
          title="Next"
          name="lines two"
          jobs={shown.jobs.filter(isWaiting)}
          total={shown.counts.waiting + shown.counts.held}
          state="waiting"
          line={nextLine}
          empty={
            <Empty title="No job is waiting.">
              <p>
                Add one: <code>stoker submit -- python3 train.py</code>
              </p>
            </Empty>
          }
        />
      </div>
      <Failures status={shown} />
    </>
  );
}

const CARD_WIDTH = 290;
const CARD_GAP = 14;

/** How many cards stand side by side: as many as fit, or fewer that make rows of the same length. */
export function columnsFor(cards: number, width: number): number {
  const fitting = Math.max(1, Math.floor((width + CARD_GAP) / (CARD_WIDTH + CARD_GAP)));
  return Math.ceil(cards / Math.ceil(cards / fitting));
}

function Cards({ count: cards, children }: { count: number; children: ComponentChildren }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(innerWidth);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => entry && setWidth(entry.contentRect.width));
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const columns = columnsFor(cards, width);
  return (
    <div class="cards" ref={box} style={{ gridTemplateColumns: `repeat(${columns}, minmax(0, 1fr))` }}>
      {children}
    </div>
  );
}

function Tiles({ status: shown }: { status: Status }): JSX.Element {
  const usage = useLoaded("usage", () => getUsage({ since: "7d" }), 60_000);
  const { counts, today, expected_empty: empty } = shown;
  const failed = countIn(FAILURES, today);
  const saved = usage.data?.saved_gpu_hours ?? null;
  return (
    <div class="tiles">
      <Tile name="Running" value={counts.active} href={hashOf("jobs", "", { state: "running" })} tone="active" />
      <Tile name="Waiting" value={counts.waiting} href={hashOf("jobs", "", { state: "waiting" })} />
      <Tile name="Held" value={counts.held} href={hashOf("jobs", "", { state: "held" })} />
      <Tile name="Done today" value={today["done"] ?? 0} href={hashOf("jobs", "", { state: "done" })} tone="good" />
      <Tile
        name="Failed today"
        value={failed}
        href={hashOf("jobs", "", { state: "failed" })}
        tone={failed ? "bad" : ""}
      />
      <Tile
        name="Queue empty"
        value={empty ? `~${clock(moment(empty), now.value)}` : counts.active + counts.waiting ? "?" : "now"}
        href={hashOf("timeline")}
      />
      <Tile
        name="Saved by sharing, 7 days, at most"
        value={saved === null ? "–" : `${hours(saved)} GPU-h`}
        href={hashOf("history")}
      />
    </div>
  );
}

function GpuCard({ device, jobs, samples }: { device: DeviceLine; jobs: JobLine[]; samples: GpuSamples | null }): JSX.Element {
  const { memory_bytes: total, drained, problem } = device;
  const used = device.used_bytes ?? device.ours_bytes + device.others_bytes;
  return (
    <article class="card gpu-card" aria-label={`GPU ${device.label}`}>
      <header>
        <h2>
          GPU {device.label} <span class="faint">{device.model}</span>
        </h2>
        <dl class="readings">
          <Reading name="util" value={device.utilisation_percent} unit="%" />
          <Reading name="temp" value={device.temperature_celsius} unit="°C" />
          {device.power_watts === null ? null : <Reading name="power" value={device.power_watts} unit="W" />}
        </dl>
      </header>
      {total ? (
        <>
          <MemoryBar device={device} />
          <p class="amounts">
            <span>
              <b>{size(used)}</b> of {size(total)} used
            </span>
            <span class="key reserved">{size(device.reserved_bytes)} reserved</span>
            {device.others_bytes ? <span class="key others">{size(device.others_bytes)} others</span> : null}
          </p>
        </>
      ) : null}
      <Curve device={device} samples={samples} />
      <ul class="on-gpu">
        {problem ? <li class="bad">{problem}</li> : null}
        {drained ? (
          <li class="held">
            drained{drained.note ? `: ${drained.note}` : ""}
            {drained.since ? `, ${ago(moment(drained.since), now.value)}` : ""}
          </li>
        ) : null}
        {device.jobs.map((label) => (
          <OnGpu key={label} label={label} job={jobs.find((job) => job.label === label)} />
        ))}
        {device.elsewhere.map((other) => (
          <li key={other.pid} class="faint">
            {other.name || other.label}, another queue of yours
          </li>
        ))}
        {device.leases
          .filter((lease) => !lease.yours)
          .map((lease) => (
            <li key={lease.pid} class="faint">
              {lease.owner}: {lease.what || "lease"}{" "}
              {lease.memory_bytes === null ? "whole GPU" : size(lease.memory_bytes)}
            </li>
          ))}
        {device.strangers.map((process) => (
          <li key={process.pid} class="faint">
            {process.owner} pid {process.pid} {process.memory_bytes === null ? "" : size(process.memory_bytes)}
          </li>
        ))}
        {!problem && !drained && !device.jobs.length && !device.strangers.length && !device.leases.length ? (
          <li class="faint">idle</li>
        ) : null}
      </ul>
    </article>
  );
}

function Reading({ name, value, unit }: { name: string; value: number | null; unit: string }): JSX.Element {
  return (
    <div>
      <dt class="unseen">{name}</dt>
      <dd>{value === null ? "?" : `${Math.round(value)}${unit}`}</dd>
    </div>
  );
}

function OnGpu({ label, job }: { label: string; job: JobLine | undefined }): JSX.Element {
  return (
    <li>
      <JobLink href={jobHash(label)} label={label} title={job ? titleOf(job) : ""} />
      {job?.progress != null ? <Progress part={job.progress} label={`progress of job ${label}`} /> : null}
    </li>
  );
}

/** When the curves begin: where the first value of a GPU is known, so that a young queue has no empty curves. */
function curvesStart(samples: GpuSamples | null, until: number): number {
  const whole = until - CURVE_HOURS * 3600;
  if (!samples) return whole;
  const places = samples.devices.map(({ curves }) => curves.utilisation_percent.findIndex((value) => value !== null));
  const first = Math.min(...places.map((place) => (place < 0 ? Infinity : place)));
  const known = first === Infinity ? until : moment(samples.start) / 1000 + first * samples.step_seconds;
  return Math.max(whole, Math.min(known, until - LEAST_CURVE_SECONDS));
}

function Curve({ device, samples }: { device: DeviceLine; samples: GpuSamples | null }): JSX.Element {
  const until = now.value / 1000;
  const from = curvesStart(samples, until);
  const curves = samples?.devices.find((one) => one.id === device.id)?.curves;
  const points: Point[] = [];
  if (samples && curves) {
    const start = moment(samples.start) / 1000;
    curves.utilisation_percent.forEach((value, index) => points.push([start + index * samples.step_seconds, value]));
  }
  points.push([until, device.utilisation_percent]);
  const gap = 2.5 * (samples?.step_seconds ?? 60);
  return (
    <figure class="curve">
      <Sparkline
        points={points}
        from={from}
        until={until}
        gap={gap}
        label={`utilisation of GPU ${device.label} since ${clock(from * 1000, now.value)}`}
      />
      <figcaption>
        <span>{clock(from * 1000, now.value)}</span>
        <span>utilisation</span>
        <span>now</span>
      </figcaption>
    </figure>
  );
}

interface ListProps {
  title: string;
  name: string;
  jobs: JobLine[];
  /** How many there are, of which `jobs` may be the first. */
  total: number;
  /** The state whose jobs the link to more of them shows. */
  state: string;
  line: (job: JobLine) => ComponentChildren;
  empty: ComponentChildren;
}

function List({ title, name, jobs, total, state, line, empty }: ListProps): JSX.Element {
  const shown = jobs.slice(0, MOST_LINES);
  const more = total - shown.reduce((sum, job) => sum + job.tasks, 0);
  return (
    <section class="card list">
      <h2>{title}</h2>
      {shown.length ? (
        <ul class={name}>
          {shown.map((job) => (
            <li key={job.label}>
              <JobLink href={hashOfLine(job)} label={job.label} title={titleOf(job)} />
              {line(job)}
            </li>
          ))}
        </ul>
      ) : (
        empty
      )}
      {more > 0 ? (
        <p class="more">
          <a href={hashOf("jobs", "", { state })}>{more.toLocaleString("en")} more</a>
        </p>
      ) : null}
    </section>
  );
}

function runningLine(job: JobLine): JSX.Element {
  return (
    <>
      <span class="middle">
        {job.progress === null ? null : <Progress part={job.progress} label={`progress of job ${job.label}`} />}
      </span>
      <span class="right">{whenText(job, now.value)}</span>
      <Second text={job.why} />
    </>
  );
}

function nextLine(job: JobLine): JSX.Element {
  return (
    <>
      <span class="right">{whenText(job, now.value) || job.state}</span>
      <Second text={job.why} />
    </>
  );
}

function Failures({ status: shown }: { status: Status }): JSX.Element | null {
  if (!shown.failures.length && !shown.interrupted.length) return null;
  return (
    <section class="card list">
      <h2>Failures of the last hour</h2>
      <ul class="lines failures">
        {shown.failures.map((job) => (
          <li key={job.label}>
            <JobLink href={jobHash(job.label)} label={job.label} title={job.title} />
            <span class="middle">
              <StateMark state={job.state} /> <span class="faint">{job.how === job.state ? "" : job.how}</span>
            </span>
            <span class="right">{ago(moment(job.ended), now.value)}</span>
            <Second text={job.why} />
          </li>
        ))}
        {shown.interrupted.map((run) => (
          <li key={run.resume}>
            <span>
              {run.jobs} jobs of {run.label} did not start
            </span>
            <span class="right">{ago(moment(run.submitted), now.value)}</span>
            <span class="second">
              <code>{run.resume}</code>
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
