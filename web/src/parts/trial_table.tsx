/** The trials of a sweep, the best first. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { scalar } from "../charts/sweep_data";
import { duration, hours } from "../format";
import { useKeys } from "../keys";
import { go, jobHash } from "../router";
import type { SweepView, TrialView } from "../types";
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
  return (
    <div class="scroll">
      <table class="small trials">
        <thead>
          <tr>
            <th>Trial</th>
            <th>State</th>
            {sweep.objectives.map((one) => (
              <th key={one.name} class="right" aria-sort={one === sweep.objectives[0] ? "other" : undefined}>
                {one.name}
              </th>
            ))}
            {parameters.map((name) => (
              <th key={name} class="right">
                {name}
              </th>
            ))}
            {sweep.objectives.length ? <th class="right">Step</th> : null}
            <th class="right">Time</th>
            <th class="right">GPU-h</th>
            <th class="note">Note</th>
          </tr>
        </thead>
        <tbody>
          {trials.map((trial, index) => (
            <tr
              key={trial.number}
              class={`${index === current ? "chosen" : ""} ${best.has(trial.number) ? "best" : ""}`}
              data-trial={trial.number}
              onClick={() => open(trial)}
            >
              <td>
                <a href={jobHash(String(trial.job))} aria-label={`trial ${trial.number}, job ${trial.job}`}>
                  {trial.number}
                </a>
              </td>
              <td>
                <StateMark state={trial.state} />
              </td>
              {sweep.objectives.map((one) => (
                <td key={one.name} class="right value">
                  {scalar(trial.values[one.name] ?? undefined)}
                </td>
              ))}
              {parameters.map((name) => (
                <td key={name} class="right">
                  {scalar(trial.params[name])}
                </td>
              ))}
              {sweep.objectives.length ? <td class="right">{scalar(trial.step ?? undefined)}</td> : null}
              <td class="right">{trial.seconds === null ? "–" : duration(trial.seconds)}</td>
              <td class="right">{hours(trial.gpu_hours)}</td>
              <td class="note" title={trial.message}>
                {trial.message}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
