/** What ran where, packed by memory, and what comes next. */

import type { EChartsType } from "echarts/core";
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";

import { getTimeline } from "../api";
import { isFailure } from "../changes";
import { colourName, colourOf } from "../charts/palette";
import { edgesOf, firstWindow, pieces, timelineHeight } from "../charts/lanes";
import { timelineOption } from "../charts/timeline";
import { type Window, zoomedWindow } from "../charts/window";
import { clock, count, moment } from "../format";
import { useKeys } from "../keys";
import { useLoaded } from "../load";
import { Entry, JobLink } from "../parts/boxes";
import { Chart } from "../parts/chart";
import { Chip, Choices } from "../parts/controls";
import { StateMark } from "../parts/marks";
import { Empty, Loading, Problem } from "../parts/placeholder";
import { adjust, go, hashOf, jobHash, route } from "../router";
import { now, useChanges } from "../state";
import type { Bar, Timeline } from "../types";

const PERIODS = ["30m", "2h", "12h", "2d", "7d"];
const REST_MS = 3000;
const NARROW = 600;
const MOST_ROWS = 200;

export function TimelineView(): JSX.Element {
  const since = route.value.query.get("since") ?? "2h";
  const loaded = useLoaded(`timeline ${since}`, () => getTimeline({ since }), REST_MS);
  useChanges(loaded.again);
  const timeline = loaded.data;
  const byName =
    timeline !== null && timeline.lanes.every((lane) => [...lane.bars, ...lane.forecast].every((bar) => !bar.group));
  const keyOf = (bar: Bar): string => (byName ? bar.title : bar.group);
  const zoomed = useRef<Window | null>(null);
  const chart = useRef<EChartsType | null>(null);
  const shown = useRef<Timeline | null>(null);
  shown.current = timeline;
  const choose = (period: string): void => {
    zoomed.current = null;
    adjust({ since: period }, true);
  };
  const zoom = (factor: number, shift: number): void => {
    const whole = shown.current;
    if (!whole || !chart.current) return;
    const edges = edgesOf(whole);
    zoomed.current = zoomedWindow(zoomed.current ?? firstWindow(whole) ?? edges, edges, factor, shift);
    chart.current.dispatchAction({ type: "dataZoom", startValue: zoomed.current.from, endValue: zoomed.current.until });
  };
  useKeys({
    ArrowLeft: () => zoom(1, -0.2),
    ArrowRight: () => zoom(1, 0.2),
    "+": () => zoom(0.6, 0),
    "=": () => zoom(0.6, 0),
    "-": () => zoom(1 / 0.6, 0),
  });
  const ready = (made: EChartsType): void => {
    chart.current = made;
    made.on("click", { seriesId: "bars" }, (event) => {
      const one = shown.current && pieces(shown.current)[event.dataIndex ?? -1];
      if (one) go(jobHash(one.bar.label));
    });
    made.on("datazoom", () => {
      const [inside] = (made.getOption() as { dataZoom: { startValue: number; endValue: number }[] }).dataZoom;
      if (inside) zoomed.current = { from: inside.startValue, until: inside.endValue };
    });
  };
  const bars = timeline?.lanes.reduce((sum, lane) => sum + lane.bars.length + lane.forecast.length, 0) ?? 0;
  return (
    <>
      <div class="filters">
        <Choices label="period" words={PERIODS} chosen={since} choose={choose} />
        <div class="chips" role="group" aria-label="zoom">
          <Chip press={() => zoom(0.6, 0)} label="zoom in">
            +
          </Chip>
          <Chip press={() => zoom(1 / 0.6, 0)} label="zoom out">
            −
          </Chip>
        </div>
        {timeline ? <Known timeline={timeline} /> : null}
        <span class="hint">drag to move · Ctrl + wheel to zoom · click a bar to open the job</span>
      </div>
      {loaded.error ? <Problem error={loaded.error} /> : null}
      {loaded.loading ? <Loading lines={10} /> : null}
      {timeline && !timeline.lanes.length ? (
        <Empty title="No GPU is known.">
          <p>
            Start the engine: <code>stoker engine start</code>
          </p>
        </Empty>
      ) : null}
      {timeline?.lanes.length ? (
        <section class="card timeline">
          <Legend timeline={timeline} keyOf={keyOf} />
          <Chart
            label={`timeline of ${count(timeline.lanes.length, "GPU")} with ${count(bars, "bar")}`}
            height={timelineHeight(timeline.lanes.length, innerHeight)}
            version={timeline}
            ready={ready}
            build={(palette, width) =>
              timelineOption({
                timeline,
                palette,
                narrow: width < NARROW,
                window: zoomed.current ?? firstWindow(timeline),
                colour: (bar) => colourOf(timeline.colours[keyOf(bar)], palette),
              })
            }
          />
        </section>
      ) : null}
      {timeline ? <Rows timeline={timeline} /> : null}
    </>
  );
}

/** Says that the axis begins later than the chosen period, where nothing is known before. */
function Known({ timeline }: { timeline: Timeline }): JSX.Element | null {
  const { from } = edgesOf(timeline);
  if (from - moment(timeline.since) < 60_000) return null;
  return <span class="faint">nothing is known before {clock(from, now.value)}</span>;
}

const MOST_KEYS = 12;

function Legend({ timeline, keyOf }: { timeline: Timeline; keyOf: (bar: Bar) => string }): JSX.Element {
  const keys = [...new Set(timeline.lanes.flatMap((lane) => [...lane.bars, ...lane.forecast].map(keyOf)))].sort();
  return (
    <div class="legend">
      {keys.slice(0, MOST_KEYS).map((key) => (
        <Entry key={key} colour={colourName(timeline.colours[key])}>
          {key || "no group"}
        </Entry>
      ))}
      {keys.length > MOST_KEYS ? <span class="entry faint">and {keys.length - MOST_KEYS} more</span> : null}
      <Entry swatch="filled">peak in use</Entry>
      <Entry swatch="reserved">reserved</Entry>
      <Entry swatch="failed">failed</Entry>
      <Entry swatch="forecast">forecast</Entry>
      <Entry swatch="line">memory in use, all processes</Entry>
      <Entry swatch="heat">utilisation 0–100%</Entry>
      {timeline.left_out ? <span class="entry faint">{count(timeline.left_out, "older job")} left out</span> : null}
      {timeline.without_gpu ? (
        <span class="entry faint">{count(timeline.without_gpu, "attempt")} without GPU</span>
      ) : null}
    </div>
  );
}

/** The same as a list, for the keyboard and for screen readers. */
function Rows({ timeline }: { timeline: Timeline }): JSX.Element | null {
  const [open, setOpen] = useState(false);
  const rows = timeline.lanes
    .flatMap((lane) => [...lane.bars, ...lane.forecast].map((bar) => ({ lane, bar })))
    .sort((one, other) => moment(other.bar.start) - moment(one.bar.start));
  if (!rows.length)
    return (
      <Empty title="No job ran on a GPU in this period.">
        <p>
          <a href={hashOf("jobs")}>Jobs</a>
        </p>
      </Empty>
    );
  return (
    <details class="card rows" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>The same as a list: {count(rows.length, "bar")}</summary>
      {open ? (
        <ul class="lines">
          {rows.slice(0, MOST_ROWS).map(({ lane, bar }) => (
            <li key={`${lane.id} ${bar.label} ${bar.attempt}`} class={isFailure(bar) ? "bad" : ""}>
              <JobLink href={jobHash(bar.label)} label={bar.label} title={bar.title} />
              <span class="middle">
                <StateMark state={bar.state} />
              </span>
              <span class="right">
                GPU {lane.label} · {clock(moment(bar.start), now.value)}
              </span>
            </li>
          ))}
        </ul>
      ) : null}
    </details>
  );
}
