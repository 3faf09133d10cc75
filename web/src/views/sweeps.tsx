/** All sweeps in a line each, or one of them. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { getSweeps } from "../api";
import { countIn } from "../changes";
import { paramsText } from "../charts/sweep_data";
import { ago, count, moment, number } from "../format";
import { useKeys } from "../keys";
import { useLoaded } from "../load";
import { Heads } from "../parts/boxes";
import { rowKeys } from "../parts/controls";
import { Progress, StateMark } from "../parts/marks";
import { Empty, Loading, Problem } from "../parts/placeholder";
import { go, hashOf, route } from "../router";
import { now, useChanges } from "../state";
import { RESULTS, type SweepLine } from "../types";
import { SweepContent } from "./sweep";

const REST_MS = 2000;
const COLUMNS: [string, string][] = [
  ["id", "ID"],
  ["mark", "State"],
  ["title", "Sweep"],
  ["memory", "Best"],
  ["part", "Trials over"],
  ["time", "Method"],
  ["when", "Started"],
];

export function Sweeps(): JSX.Element {
  const id = route.value.argument;
  return id ? <SweepContent key={id} id={id} /> : <SweepList />;
}

function SweepList(): JSX.Element {
  const loaded = useLoaded("sweeps", getSweeps, REST_MS);
  useChanges((changes) => {
    if (changes.changed.length || changes.more) loaded.again();
  });
  const sweeps = loaded.data?.sweeps ?? [];
  const [current, setCurrent] = useState(-1);
  useKeys({
    ...rowKeys(sweeps.length, current, setCurrent),
    Enter: () => {
      const sweep = sweeps[current];
      if (sweep) go(hashOf("sweeps", String(sweep.id)));
    },
  });
  if (loaded.error) return <Problem error={loaded.error} />;
  if (loaded.loading) return <Loading lines={8} />;
  if (!sweeps.length) return <NoSweeps />;
  return (
    <table class="jobs sweeps">
      <Heads columns={COLUMNS} />
      <tbody>
        {sweeps.map((sweep, index) => (
          <Line key={sweep.id} sweep={sweep} isCurrent={index === current} />
        ))}
      </tbody>
    </table>
  );
}

function NoSweeps(): JSX.Element {
  return (
    <Empty title="There is no sweep yet.">
      <p>A sweep runs a command once for each point of a parameter space:</p>
      <p>
        <code class="command">stoker sweep lr=1e-4..1e-1:log bs=16,32 -N 20 --method random -- python3 train.py</code>
      </p>
    </Empty>
  );
}

function Line({ sweep, isCurrent }: { sweep: SweepLine; isCurrent: boolean }): JSX.Element {
  const over = countIn(RESULTS, sweep.counts);
  const title = sweep.name || `sweep ${sweep.id}`;
  const best = paramsText(sweep.params);
  return (
    <tr class={isCurrent ? "current" : ""} data-sweep={sweep.id}>
      <td class="id">{sweep.id}</td>
      <td class="mark">
        <StateMark state={sweep.state} />
      </td>
      <td class="title">
        <a href={hashOf("sweeps", String(sweep.id))} title={title}>
          {title}
        </a>
        <span class="second" title={best}>
          {best || count(sweep.total, "trial")}
        </span>
      </td>
      <td class="memory" title={sweep.objective}>
        {sweep.best === null ? <span class="faint">–</span> : <b>{number(sweep.best)}</b>}
        {sweep.objective ? <span class="second">{sweep.objective}</span> : null}
      </td>
      <td class="part">
        <Progress part={sweep.total ? over / sweep.total : 0} label={`trials of sweep ${sweep.id} that are over`} />
        <span class="second">
          {over.toLocaleString("en")} of {sweep.total.toLocaleString("en")}
        </span>
      </td>
      <td class="time">{sweep.method}</td>
      <td class="when">{ago(moment(sweep.created), now.value)}</td>
    </tr>
  );
}
