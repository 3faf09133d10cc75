/** The trials of a sweep, the best first. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { scalar } from "../charts/sweep_data";
import { duration, hours, known } from "../format";
import { useKeys } from "../keys";
import { go, jobHash } from "../router";
import type { SweepView, TrialView } from "../types";
import { type Column, SmallTable } from "./boxes";
import { rowKeys } from "./controls";
import { StateMark } from "./marks";

interface Props {
  sweep: SweepView;
  trials: TrialView[];
  /** Parameters that differ between trials. */
  parameters: string[];
}

export function TrialTable({ sweep, trials, parameters }: Props): JSX.Element {
  const [current, setCurrent] = useState(-1);
  const open = (trial: TrialView | undefined): void => {
    if (trial) go(jobHash(String(trial.job)));
  };
  const moveTo = (row: number): void => {
    setCurrent(row);
    document.querySelector(`tr[data-trial="${trials[row]?.number}"]`)?.scrollIntoView({ block: "nearest" });
  };
  useKeys({
    ...rowKeys(trials.length, current, moveTo),
    Enter: () => open(trials[current]),
  });
  const best = new Set(sweep.best[0]?.trials);
  const columns: Column<TrialView>[] = [
    ["Trial", (trial) => <TrialLink trial={trial} />],
    ["State", ({ state }) => <StateMark state={state} />],
    ...sweep.objectives.map(
      ({ name }): Column<TrialView> => [name, ({ values }) => scalar(values[name] ?? undefined), "right value"],
    ),
    ...parameters.map((name): Column<TrialView> => [name, ({ params }) => scalar(params[name]), "right"]),
    ...(sweep.objectives.length ? [STEP] : []),
    ["Time", ({ seconds }) => known(duration, seconds), "right"],
    ["GPU-h", ({ gpu_hours }) => hours(gpu_hours), "right"],
    ["Note", ({ message }) => <span title={message}>{message}</span>, "note"],
  ];
  return (
    <SmallTable
      name="trials"
      rows={trials}
      columns={columns}
      attributes={(trial, index) => ({
        class: `${index === current ? "chosen" : ""} ${best.has(trial.number) ? "best" : ""}`,
        "data-trial": trial.number,
        onClick: () => open(trial),
      })}
    />
  );
}

const STEP: Column<TrialView> = ["Step", ({ step }) => scalar(step ?? undefined), "right"];

function TrialLink({ trial: { number, job } }: { trial: TrialView }): JSX.Element {
  return (
    <a href={jobHash(String(job))} aria-label={`trial ${number}, job ${job}`}>
      {number}
    </a>
  );
}
