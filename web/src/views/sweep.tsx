/** One sweep: what it searches, how far it is, its charts and its trials. */

import type { EChartsType } from "echarts/core";
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { getSweep } from "../api";
import { countIn } from "../changes";
import { axisId, axisPlace, bestOption, curvesOption, parallelOption, parameterOption } from "../charts/sweep";
import { type Brush, brushedTrials, parametersOf, paramsText, scalar } from "../charts/sweep_data";
import { ago, clock, count, hours, moment, number } from "../format";
import { useLoaded } from "../load";
import { Entry, Fact, Tile } from "../parts/boxes";
import { Figure } from "../parts/chart";
import { Chip, Pages } from "../parts/controls";
import { Progress, StateMark } from "../parts/marks";
import { Empty, Pending } from "../parts/placeholder";
import { TrialTable } from "../parts/trial_table";
import { adjust, go, hashOf, jobHash, pageOf, route } from "../router";
import { now, useChanges } from "../state";
import { ACTIVE, FAILURES, RESULTS, type SweepPage, type SweepPoint, type SweepView, type TrialView } from "../types";

const REST_MS = 2000;
/** Values of trials that run come without an event. */
const POLL_MS = 5000;
const CHART_HEIGHT = 270;
const NARROW = 700;
const LINES = 100;

export function SweepContent({ id }: { id: string }): JSX.Element {
  const page = pageOf(route.value.query);
  const loaded = useLoaded(`sweep ${id} ${page}`, () => getSweep(id, page), REST_MS);
  useChanges((changes) => {
    if (changes.changed.length || changes.more) loaded.again();
  });
  const isOpen = loaded.data !== null && ["queued", "running"].includes(loaded.data.sweep.state);
  useEffect(() => {
    if (!isOpen) return undefined;
    const timer = setInterval(() => {
      if (!document.hidden) loaded.again();
    }, POLL_MS);
    return () => clearInterval(timer);
  }, [isOpen]);
  return loaded.data ? <Content data={loaded.data} /> : <Pending loaded={loaded} lines={12} />;
}

function Content({ data }: { data: SweepPage }): JSX.Element {
  const { sweep } = data;
  const [brush, setBrush] = useState<Brush>({});
  const chosen = useMemo(() => brushedTrials(data.points, brush), [data, brush]);
  const parallel = useRef<EChartsType | null>(null);
  const ready = (chart: EChartsType): void => {
    parallel.current = chart;
    openTrial(chart);
    chart.on("axisareaselected", (event) => {
      const { parallelAxisId: axis, intervals } = event as unknown as {
        parallelAxisId: string;
        intervals: [number, number][];
      };
      // An axis that is drawn upside down reports its parts from the larger to the smaller number.
      const parts = intervals.map(([one, other]): [number, number] => [Math.min(one, other), Math.max(one, other)]);
      setBrush((old) => ({ ...old, [axisPlace(axis)]: parts }));
      adjust({});
    });
  };
  const clear = (): void => {
    data.axes.forEach((_, place) =>
      parallel.current?.dispatchAction({ type: "axisAreaSelect", parallelAxisId: axisId(place), intervals: [] }),
    );
    setBrush({});
  };
  const [picked, setPicked] = useState("");
  const parameters = parametersOf(data.axes);
  const parameter = parameters.includes(picked)
    ? picked
    : (Object.keys(sweep.importance).find((name) => parameters.includes(name)) ?? parameters[0] ?? "");
  return (
    <article class="job">
      <Head sweep={sweep} />
      <Tiles sweep={sweep} />
      {sweep.objectives.length ? (
        <div class="job-columns sweep-columns">
          <div class="side">
            <Facts sweep={sweep} />
          </div>
          <div class="main">
            <BestChart data={data} chosen={chosen} />
            <ParallelChart data={data} chosen={chosen} ready={ready} clear={clear} />
          </div>
        </div>
      ) : (
        <>
          <Facts sweep={sweep} />
          <p class="faint">
            This sweep has no objective, so no trial is better than another. Name one to see charts:{" "}
            <code>stoker sweep --objective val_loss:min ...</code>
          </p>
        </>
      )}
      {sweep.objectives.length ? (
        <div class="charts">
          <ParameterChart data={data} chosen={chosen} names={parameters} name={parameter} pick={setPicked} />
          <CurvesChart data={data} chosen={chosen} />
        </div>
      ) : null}
      <Trials data={data} chosen={chosen} clear={clear} />
    </article>
  );
}

function Head({ sweep }: { sweep: SweepView }): JSX.Element {
  const lost = sweep.state === "interrupted";
  return (
    <header class="job-head">
      <p class="crumbs">
        <a href={hashOf("sweeps")}>Sweeps</a> / {sweep.id}
      </p>
      <div class="job-title">
        <h1>{sweep.name || `sweep ${sweep.id}`}</h1>
        <StateMark state={sweep.state} />
        <span class="faint">started {ago(moment(sweep.created), now.value)}</span>
      </div>
      {lost ? (
        <p class="failure">
          Its tuner, job {sweep.tuner}, is {sweep.tuner_state}
          {sweep.tuner_message ? `: ${sweep.tuner_message}` : ""}.
        </p>
      ) : null}
      {sweep.notices.map((notice) => (
        <p key={notice} class="why">
          {notice}
        </p>
      ))}
    </header>
  );
}

function Tiles({ sweep }: { sweep: SweepView }): JSX.Element {
  const first = sweep.objectives[0];
  const best = first && sweep.best[0]?.values[first.name];
  const failed = countIn(FAILURES, sweep.counts);
  return (
    <div class="tiles sweep-tiles">
      {first ? (
        <Tile name={`best ${first.name} (${first.goal})`} tone="good" value={best === undefined ? "–" : number(best)} />
      ) : null}
      <Tile name={`of ${count(sweep.total, "trial")} over`} value={countIn(RESULTS, sweep.counts)} />
      <Tile name="running" tone="active" value={countIn(ACTIVE, sweep.counts)} />
      {first ? <Tile name="stopped early" value={sweep.counts["stopped"] ?? 0} /> : null}
      <Tile name="failed" tone={failed ? "bad" : ""} value={failed} />
      <Tile name="GPU-hours" value={hours(sweep.gpu_hours)} />
      {first ? <Tile name="GPU-hours saved" value={hours(sweep.gpu_hours_saved)} /> : null}
    </div>
  );
}

function Facts({ sweep }: { sweep: SweepView }): JSX.Element {
  const over = countIn(RESULTS, sweep.counts);
  return (
    <section class="card facts">
      {sweep.best[0] ? <BestPoints sweep={sweep} /> : null}
      <h2>Sweep</h2>
      <pre class="command">{sweep.command}</pre>
      <dl>
        <Fact name="method">{sweep.method}</Fact>
        {sweep.objectives.map((one) => (
          <Fact key={one.name} name="objective">
            {one.name}, {one.goal}
            <span class="faint row">{one.source}</span>
          </Fact>
        ))}
        <Fact name="space">
          {sweep.space.map((one) => (
            <code key={one} class="row">
              {one}
            </code>
          ))}
        </Fact>
        {sweep.pruners.length ? <Fact name="stops early">{sweep.pruners.join(", ")}</Fact> : null}
        <Fact name="progress">
          <Progress part={sweep.total ? over / sweep.total : 0} label="trials that are over" />
        </Fact>
        {sweep.gpu_hours_full_trial === null ? null : (
          <Fact name="full trial">{hours(sweep.gpu_hours_full_trial)} GPU-hours (median)</Fact>
        )}
        {sweep.tuner === null ? null : (
          <Fact name="tuner">
            <a href={jobHash(String(sweep.tuner))}>job {sweep.tuner}</a>, {sweep.tuner_state}
          </Fact>
        )}
        <Fact name="started">{clock(moment(sweep.created), now.value)}</Fact>
      </dl>
      <Importance sweep={sweep} />
    </section>
  );
}

const MOST_BEST = 8;

/** The best point; with several objectives, all that no other point beats. */
function BestPoints({ sweep }: { sweep: SweepView }): JSX.Element {
  const shown = sweep.objectives.length > 1 ? sweep.best.slice(0, MOST_BEST) : sweep.best.slice(0, 1);
  return (
    <>
      <h2>{sweep.objectives.length > 1 ? "Best points" : "Best point"}</h2>
      {shown.map((point) => (
        <dl key={point.trials[0]} class="best-point">
          <Fact name={point.jobs.length > 1 ? "trials" : "trial"}>
            {point.jobs.map((job, index) => (
              <a key={job} href={jobHash(String(job))}>
                {index ? " " : ""}
                {point.trials[index]}
              </a>
            ))}
          </Fact>
          {Object.entries(point.values).map(([name, value]) => (
            <Fact key={name} name={name}>
              <b>{number(value)}</b>
            </Fact>
          ))}
          {shown.length > 1 ? (
            <Fact name="params">{paramsText(point.params)}</Fact>
          ) : (
            Object.entries(point.params).map(([name, value]) => (
              <Fact key={name} name={name}>
                {scalar(value)}
              </Fact>
            ))
          )}
        </dl>
      ))}
    </>
  );
}

function Importance({ sweep }: { sweep: SweepView }): JSX.Element | null {
  const found = Object.entries(sweep.importance);
  if (!found.length) return <p class="faint">Importance of parameters: too few full trials to tell.</p>;
  return (
    <>
      <h2 title={sweep.importance_method}>Importance of parameters</h2>
      <dl class="importance">
        {found.map(([name, share]) => (
          <Fact key={name} name={name}>
            <span class="track">
              <span class="hours-bar" style={{ width: `${share * 100}%` }} />
            </span>
            <span class="number">{Math.round(share * 100)}%</span>
          </Fact>
        ))}
      </dl>
    </>
  );
}

type Chosen = ReadonlySet<number> | null;

function openTrial(chart: EChartsType): void {
  chart.on("click", (event) => {
    const { point } = (event.data ?? {}) as { point?: SweepPoint };
    if (point) go(jobHash(String(point.trial.job)));
  });
}

/** Another object whenever one of the values is another one. */
function useVersion(...values: unknown[]): object {
  return useMemo(() => ({}), values);
}

const NoValue = (): JSX.Element => <Empty title="No trial has ended with a value yet." />;

function LeftOut({ trials }: { trials: number }): JSX.Element | null {
  return trials ? <span class="entry faint">{count(trials, "trial")} left out</span> : null;
}

function BestChart({ data, chosen }: { data: SweepPage; chosen: Chosen }): JSX.Element {
  return (
    <Figure
      caption="Best so far"
      label={`${count(data.points.length, "trial")} and the best value so far`}
      height={CHART_HEIGHT}
      version={useVersion(data, chosen)}
      ready={openTrial}
      build={(palette) => bestOption(data, chosen, palette)}
      empty={data.points.length ? null : <NoValue />}
      legend={
        <>
          <Entry swatch="best-line">best so far</Entry>
          <Entry swatch="round">ended by itself</Entry>
          {data.sweep.counts["stopped"] ? <Entry swatch="diamond">stopped early</Entry> : null}
          <LeftOut trials={data.points_left_out} />
        </>
      }
    />
  );
}

interface ParallelProps {
  data: SweepPage;
  chosen: Chosen;
  ready: (chart: EChartsType) => void;
  clear: () => void;
}

function ParallelChart({ data, chosen, ready, clear }: ParallelProps): JSX.Element {
  const narrow = innerWidth < NARROW;
  return (
    <Figure
      tools
      caption={
        <>
          Parameters
          <span class="hint">drag along an axis to choose trials · click the axis to undo it</span>
          {chosen ? <Chip press={clear}>{count(chosen.size, "trial")} chosen: show all</Chip> : null}
        </>
      }
      label={`parallel coordinates of ${count(data.points.length, "trial")}`}
      height={narrow ? 72 * data.axes.length + 40 : 320}
      version={data}
      ready={ready}
      build={(palette) => parallelOption(data, narrow, palette)}
      empty={data.points.length ? null : <NoValue />}
      legend={
        <>
          <Entry swatch="best-tenth">the best 10%</Entry>
          <Entry swatch="all-trials">all trials</Entry>
          <LeftOut trials={data.points_left_out} />
        </>
      }
    />
  );
}

interface ParameterProps {
  data: SweepPage;
  chosen: Chosen;
  names: string[];
  name: string;
  pick: (name: string) => void;
}

function ParameterChart({ data, chosen, names, name, pick }: ParameterProps): JSX.Element {
  return (
    <Figure
      tools
      caption={
        <label>
          One parameter{" "}
          <select value={name} onChange={(event) => pick(event.currentTarget.value)} aria-label="parameter">
            {names.map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </label>
      }
      label={`${data.sweep.objectives[0]?.name ?? ""} by ${name}`}
      height={CHART_HEIGHT}
      version={useVersion(data, chosen, name)}
      ready={openTrial}
      build={(palette) => parameterOption(data, name, chosen, palette)}
      empty={data.points.length && name ? null : <NoValue />}
    />
  );
}

function CurvesChart({ data, chosen }: { data: SweepPage; chosen: Chosen }): JSX.Element {
  const curves = useRef(data.curves);
  curves.current = data.curves;
  const ready = (chart: EChartsType): void => {
    chart.on("click", (event) => {
      const curve = curves.current.find((one) => String(one.trial) === event.seriesName);
      if (curve) go(jobHash(String(curve.job)));
    });
  };
  return (
    <Figure
      caption="Learning curves"
      label={`learning curves of ${count(data.curves.length, "trial")}`}
      height={CHART_HEIGHT}
      version={useVersion(data, chosen)}
      ready={ready}
      build={(palette) => curvesOption(data, chosen, palette)}
      empty={data.curves.length ? null : <Empty title="No trial has reported a value yet." />}
      legend={
        <>
          {data.sweep.best[0] ? <Entry swatch="best-line">trial {data.sweep.best[0].trials[0]}, the best</Entry> : null}
          {data.sweep.counts["stopped"] ? <Entry swatch="stopped-line">stopped early</Entry> : null}
          <LeftOut trials={data.curves_left_out} />
        </>
      }
    />
  );
}

/** The page of the table that the server sent; of chosen trials, all that the charts have. */
function Trials({ data, chosen, clear }: { data: SweepPage; chosen: Chosen; clear: () => void }): JSX.Element {
  const found: TrialView[] = chosen
    ? data.points
        .filter((point) => chosen.has(point.trial.number))
        .sort((one, other) => other.goodness - one.goodness)
        .map((point) => point.trial)
    : data.sweep.trials;
  const pages = chosen ? Math.max(1, Math.ceil(found.length / LINES)) : data.pages;
  const page = Math.min(pageOf(route.value.query), pages);
  const shown = chosen ? found.slice((page - 1) * LINES, page * LINES) : found;
  const turn = (to: number): void => adjust({ page: to > 1 ? String(to) : "" });
  const parameters = data.axes.length ? parametersOf(data.axes) : Object.keys(data.sweep.trials[0]?.params ?? {});
  return (
    <section class="card trials">
      <div class="with-tools">
        <h2>
          Trials <span class="faint">{(chosen ? chosen.size : data.total).toLocaleString("en")}</span>
        </h2>
        {chosen ? (
          <>
            <span class="faint">
              chosen in the chart
              {data.points_left_out ? `, which leaves out ${count(data.points_left_out, "trial")}` : ""}
            </span>
            <Chip press={clear}>Show all</Chip>
          </>
        ) : null}
      </div>
      {shown.length ? (
        <TrialTable sweep={data.sweep} trials={shown} parameters={parameters} />
      ) : (
        <Empty title={chosen ? "No trial is inside of the chosen parts." : "No trial is in the queue yet."} />
      )}
      <Pages page={page} pages={pages} turn={turn} words={["Better", "Worse"]} />
    </section>
  );
}
