/** All sweeps in a line each, or one of them. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { getSweeps } from "../api";
import { countIn } from "../changes";
import { paramsText } from "../charts/sweep_data";
import { ago, count, moment, number } from "../format";
import { useKeys } from "../keys";
import { useLoaded } from "../load";
import { type Column, Second, Table } from "../parts/boxes";
import { rowKeys } from "../parts/controls";
import { Progress, StateMark } from "../parts/marks";
import { Empty, Pending } from "../parts/placeholder";
import { go, hashOf, route } from "../router";
import { now, useChanges } from "../state";
import { RESULTS, type SweepLine } from "../types";
import { SweepContent } from "./sweep";

const REST_MS = 2000;
const COLUMNS: Column<SweepLine>[] = [
  ["ID", ({ id }) => id, "column-id"],
  ["State", ({ state }) => <StateMark state={state} />, "column-state"],
  ["Sweep", (sweep) => <Name sweep={sweep} />, "column-name"],
  ["Best", (sweep) => <Best sweep={sweep} />, "column-best right"],
  ["Trials over", (sweep) => <Over sweep={sweep} />, "column-progress"],
  ["Method", ({ method }) => method, "column-method right"],
  ["Started", ({ created }) => ago(moment(created), now.value), "column-started right"],
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
  if (loaded.error || loaded.loading) return <Pending loaded={loaded} lines={8} />;
  if (!sweeps.length) return <NoSweeps />;
  return (
    <Table
      name="jobs"
      rows={sweeps}
      columns={COLUMNS}
      attributes={({ id }, index) => ({ class: index === current ? "current" : "", "data-sweep": id })}
    />
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

function Name({ sweep }: { sweep: SweepLine }): JSX.Element {
  const title = sweep.name || `sweep ${sweep.id}`;
  return (
    <>
      <a href={hashOf("sweeps", String(sweep.id))} title={title}>
        {title}
      </a>
      <Second text={paramsText(sweep.params) || count(sweep.total, "trial")} />
    </>
  );
}

function Best({ sweep: { best, objective } }: { sweep: SweepLine }): JSX.Element {
  return (
    <>
      {best === null ? <span class="faint">–</span> : <b>{number(best)}</b>}
      {objective ? <Second text={objective} /> : null}
    </>
  );
}

function Over({ sweep: { id, counts, total } }: { sweep: SweepLine }): JSX.Element {
  const over = countIn(RESULTS, counts);
  return (
    <>
      <Progress part={total ? over / total : 0} label={`trials of sweep ${id} that are over`} />
      <span class="second">
        {over.toLocaleString("en")} of {total.toLocaleString("en")}
      </span>
    </>
  );
}
