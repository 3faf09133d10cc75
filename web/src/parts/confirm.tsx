/** Asks before an action, names the jobs, and says what became of them. */

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { getJob, postAction } from "../api";
import { isOver, isWaiting } from "../changes";
import { count } from "../format";
import type { Keys } from "../keys";
import { refresh, useChanges } from "../state";
import type { ActionName, ChangeResult, JobLine, Matching, TasksLine } from "../types";
import { Modal } from "./boxes";
import { titleOf } from "./job_table";

/** What an action needs to know of a job. */
export interface Target {
  label: string;
  title: string;
  state: string;
  tasks?: number;
  priority?: number;
}

export function targetOf(job: JobLine): Target {
  return { label: job.label, title: titleOf(job), state: job.state, tasks: job.tasks, priority: job.priority };
}

interface Question {
  action: ActionName;
  targets: Target[];
  /** All jobs of a list, of which the targets are some. */
  matching?: Matching | undefined;
}

export interface Notice {
  text: string;
  bad: boolean;
}

const question = signal<Question | null>(null);
export const notice = signal<Notice | null>(null);
const MOST_NAMES = 8;

/** What decides which actions fit. */
interface Chosen {
  state: string;
  preemptible?: string;
}

interface Words {
  name: string;
  past: string;
  note: string;
  /** Whether the action makes sense for a job. */
  fits: (job: Chosen) => boolean;
}

function words(name: string, past: string, note: string, fits: Words["fits"]): Words {
  return { name, past, note, fits };
}

const canGiveWay = (job: Chosen): boolean => job.state === "running" && !!job.preemptible;
const isOpen = (job: { state: string }): boolean => !isOver(job);
const isHeld = (job: { state: string }): boolean => job.state === "held";
const canBeHeld = (job: { state: string }): boolean => isWaiting(job) && !isHeld(job);

export const ACTIONS: Record<ActionName, Words> = {
  cancel: words("Cancel", "cancelled", "Running jobs get SIGTERM and, after their grace time, SIGKILL.", isOpen),
  retry: words("Retry", "queued again", "Each job runs again with the same options, as a new attempt.", isOver),
  hold: words("Hold", "held", "Held jobs do not start until you release them.", canBeHeld),
  release: words("Release", "released", "The jobs may start again.", isHeld),
  preempt: words("Preempt", "asked to give way", "The next waiting job gets the GPUs; these go on later.", canGiveWay),
  priority: words("Priority", "changed", "Higher numbers start first; the default is 0.", isWaiting),
};
export const ACTION_NAMES = Object.keys(ACTIONS) as ActionName[];

/** The keys of the actions; `p` releases if all jobs are held. */
export function actionKeys(jobs: () => { state: string }[], act: (action: ActionName) => void): Keys {
  return {
    c: () => act("cancel"),
    r: () => act("retry"),
    p: () => act(jobs().every(isHeld) ? "release" : "hold"),
    g: () => act("preempt"),
    "+": () => act("priority"),
  };
}

interface ActionButtonProps {
  action: ActionName;
  press: () => void;
  disabled?: boolean;
}

export function ActionButton({ action, press, disabled = false }: ActionButtonProps): JSX.Element {
  return (
    <button type="button" class={action === "cancel" ? "danger" : ""} disabled={disabled} onClick={press}>
      {ACTIONS[action].name}
    </button>
  );
}

export function ask(action: ActionName, targets: Target[], matching?: Matching): void {
  if (targets.length) question.value = { action, targets, matching };
}

function total(targets: Target[]): number {
  return targets.reduce((sum, target) => sum + (target.tasks ?? 1), 0);
}

/** How the server knows a target. */
export function nameOf({ label, state, tasks = 1 }: Target): string | TasksLine {
  return tasks > 1 ? { label, state } : label;
}

/** One sentence about the results. */
export function summary(action: ActionName, results: ChangeResult[]): Notice {
  if (!results.length) return { text: "nothing was done: the jobs are in another state by now", bad: true };
  const refused = results.filter((result) => result.refused);
  const late = results.filter((result) => !result.refused && isTooLate(action, result.before));
  const done = results.length - refused.length - late.length;
  const first = refused[0];
  const why = first ? `${count(refused.length, "job")} refused: ${first.shown} ${first.said}` : "";
  return {
    text: [done ? `${count(done, "job")} ${ACTIONS[action].past}` : "", lateText(action, late), why].filter(Boolean).join("; "),
    bad: refused.length > 0,
  };
}

/** Whether a job had left the state in which the action means something. */
function isTooLate(action: ActionName, before: string): boolean {
  return (action === "cancel" && isOver({ state: before })) || (action === "preempt" && before !== "running");
}

/** Jobs that ended by themselves before they could be cancelled, or did not run when they were to give way. */
function lateText(action: ActionName, late: ChangeResult[]): string {
  const [first, ...others] = late;
  const what = action === "cancel" ? "had already finished" : "not running";
  return first && others.length ? `${count(late.length, "job")} ${what}` : (first?.said ?? "");
}

/** The priorities that the jobs have: `7`, or `0 to 7`. */
export function prioritiesOf(targets: Target[]): string {
  const known = targets.map((target) => target.priority ?? 0);
  const [least, most] = [Math.min(...known), Math.max(...known)];
  return least === most ? String(least) : `${least} to ${most}`;
}

/** The states of jobs as they are now, while a dialog is open. */
function useStates(targets: Target[]): (target: Target) => string {
  const [states, setStates] = useState<Record<string, string>>({});
  const note = (label: string, state: string): void => setStates((known) => ({ ...known, [label]: state }));
  useChanges((changes) => {
    for (const { label } of targets.slice(0, MOST_NAMES)) {
      const line = changes.jobs.find((job) => job.label === label);
      if (line) note(label, line.state);
      else if (changes.changed.includes(label) || changes.gone.includes(label))
        getJob(label).then(
          (job) => note(label, job.state),
          () => undefined, // the answer to the action will tell
        );
    }
  });
  return (target) => states[target.label] ?? target.state;
}

export function Confirm(): JSX.Element | null {
  const asked = question.value;
  return asked ? <Dialog key={asked.action} {...asked} /> : null;
}

function Dialog({ action, targets, matching }: Question): JSX.Element {
  const [busy, setBusy] = useState(false);
  const priorities = matching ? "" : prioritiesOf(targets); // those of jobs on other pages are not known
  const differ = priorities.includes(" ");
  const [value, setValue] = useState(differ ? "" : priorities);
  const stateOf = useStates(targets);
  const [problem, setProblem] = useState("");
  const { name, note } = ACTIONS[action];
  const verb = action === "priority" ? "Change priority of" : name;
  const jobs = count(matching?.count ?? total(targets), "job");
  const named = targets.slice(0, MOST_NAMES);
  const others = (matching?.count ?? total(targets)) - total(named);
  const close = (): void => {
    question.value = null;
  };
  const act = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      const meant = matching ?? targets.map(nameOf);
      const report = await postAction(action, meant, action === "priority" ? Number(value) : null);
      notice.value = summary(action, report.jobs);
      close();
      void refresh();
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      setBusy(false);
    }
  };
  return (
    <Modal title={`${verb} ${jobs}?`} close={close}>
      <form onSubmit={(event) => void act(event)}>
        <ul class="targets">
          {named.map((target) => (
            <li key={target.label}>
              <span class="id">{target.label}</span> <span class="name">{target.title}</span>{" "}
              <span class="faint">{stateOf(target)}</span>
            </li>
          ))}
          {others > 0 ? <li class="faint">and {others.toLocaleString("en")} more</li> : null}
        </ul>
        {action === "priority" ? (
          <label class="field">
            Priority
            <input
              type="number"
              step={1}
              required
              value={value}
              placeholder={priorities}
              autofocus
              onInput={(event) => setValue(event.currentTarget.value)}
            />
            {differ ? <span class="faint">{`now ${priorities}`}</span> : null}
          </label>
        ) : null}
        <p class="faint">{note}</p>
        {problem ? (
          <p class="problem" role="alert">
            {problem}
          </p>
        ) : null}
        <div class="buttons">
          <button type="button" onClick={close}>
            Go back
          </button>
          <button type="submit" class={action === "cancel" ? "danger" : "primary"} disabled={busy}>
            {verb} {jobs}
          </button>
        </div>
      </form>
    </Modal>
  );
}

/** The last result; it disappears after some seconds. */
export function Toast(): JSX.Element {
  const shown = notice.value;
  useEffect(() => {
    if (!shown) return undefined;
    const timer = setTimeout(
      () => {
        notice.value = null;
      },
      shown.bad ? 12_000 : 5_000,
    );
    return () => clearTimeout(timer);
  }, [shown]);
  return (
    <div class={`toast ${shown ? "shown" : ""} ${shown?.bad ? "bad" : ""}`} role="status">
      {shown?.text}
    </div>
  );
}
