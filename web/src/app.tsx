/** The frame around the views: header, navigation, banners, dialogs. */

import { signal } from "@preact/signals";
import type { ComponentType, JSX } from "preact";
import { useEffect } from "preact/hooks";

import { ago, clock, moment } from "./format";
import { type Keys, useKeys } from "./keys";
import { Modal } from "./parts/boxes";
import { Confirm, Toast } from "./parts/confirm";
import { Empty } from "./parts/placeholder";
import { back, go, hashOf, route } from "./router";
import { connection, now, session, status, trouble } from "./state";
import { choice, nextTheme } from "./theme";
import { History } from "./views/history";
import { JobView } from "./views/job";
import { Jobs } from "./views/jobs";
import { Overview } from "./views/overview";
import { Sweeps } from "./views/sweeps";
import { TimelineView } from "./views/timeline";

interface View {
  name: string;
  title: string;
  content: ComponentType;
}

/** The views of the navigation, in order. A new view is one more line. */
const VIEWS: View[] = [
  { name: "overview", title: "Overview", content: Overview },
  { name: "timeline", title: "Timeline", content: TimelineView },
  { name: "jobs", title: "Jobs", content: Jobs },
  { name: "history", title: "History", content: History },
  { name: "sweeps", title: "Sweeps", content: Sweeps },
];

const helpShown = signal(false);

export function App(): JSX.Element {
  useKeys(globalKeys());
  useTitle();
  if (connection.value === "refused") return <Refused />;
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      <Header />
      <Banners />
      <main id="main" tabIndex={-1}>
        <Content />
      </main>
      <Confirm />
      <Help />
      <Toast />
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function globalKeys(): Keys {
  const numbers = VIEWS.map(({ name }, index): [string, () => void] => [String(index + 1), () => go(hashOf(name))]);
  return {
    ...Object.fromEntries(numbers),
    "/": () => document.querySelector<HTMLInputElement>("input[type=search]")?.focus(),
    t: nextTheme,
    "?": () => {
      helpShown.value = true;
    },
    ...leavingKeys(),
  };
}

/** Esc leaves a page that was opened from a list; in a list it is left to the list. */
function leavingKeys(): Keys {
  const { view, argument } = route.value;
  if (view === "job") return { Escape: () => back(hashOf("jobs")) };
  return view === "sweeps" && argument ? { Escape: () => back(hashOf("sweeps")) } : {};
}

/** The tab of the browser tells how many jobs run and wait. */
function useTitle(): void {
  const shown = status.value;
  const job = route.value.view === "job" ? `job ${route.value.argument} · ` : "";
  const title = shown
    ? `${job}${shown.counts.active} running, ${shown.counts.waiting} waiting · ${shown.host}`
    : "Stoker";
  useEffect(() => {
    document.title = title;
  }, [title]);
}

function Content(): JSX.Element {
  const { view } = route.value;
  if (view === "job") return <JobView key={route.value.argument} label={route.value.argument} />;
  const found = VIEWS.find(({ name }) => name === view);
  if (!found)
    return (
      <Empty title="There is no such view.">
        <p>
          <a href={hashOf("overview")}>Overview</a>
        </p>
      </Empty>
    );
  return (
    <>
      {route.value.argument ? null : <h1 class="unseen">{found.title}</h1>}
      <found.content />
    </>
  );
}

function Header(): JSX.Element {
  const shown = status.value;
  const here = route.value.view === "job" ? "jobs" : route.value.view;
  return (
    <header class="top">
      <a class="brand" href={hashOf("overview")}>
        <span class="flame" aria-hidden="true">
          <i />
          <i />
          <i />
        </span>
        stoker <span class="host">{shown?.host ?? ""}</span>
        {shown?.simulated ? (
          <span class="badge" title="The GPUs are simulated">
            SIM
          </span>
        ) : null}
      </a>
      <nav class="views" aria-label="views">
        {VIEWS.map(({ name, title }) => (
          <a key={name} href={hashOf(name)} aria-current={name === here ? "page" : undefined}>
            {title}
          </a>
        ))}
        {session.value?.pages.map((name) => (
          <a key={name} href={`${name}.html`}>
            {name.charAt(0).toUpperCase() + name.slice(1)}
          </a>
        ))}
      </nav>
      <div class="tools">
        <EngineState />
        {session.value?.readonly ? <span class="badge quiet">read only</span> : null}
        <button
          type="button"
          class="quiet"
          onClick={nextTheme}
          aria-label={`theme: ${choice.value}`}
          title={`Theme: ${choice.value} (t)`}
        >
          <span aria-hidden="true">{{ system: "◐", light: "○", dark: "●" }[choice.value]}</span>
        </button>
        <button type="button" class="quiet" onClick={() => (helpShown.value = true)} aria-label="keys" title="Keys (?)">
          ?
        </button>
      </div>
    </header>
  );
}

/** One word about the connection and the engine. */
function EngineState(): JSX.Element {
  const engine = status.value?.engine;
  let tone = "good";
  let text = "engine running";
  if (connection.value !== "live")
    [tone, text] = connection.value === "lost" ? ["bad", "not connected"] : ["faint", "connecting"];
  else if (!engine) [tone, text] = ["faint", "…"];
  else if (!engine.running) [tone, text] = ["bad", "engine stopped"];
  else if (engine.paused) [tone, text] = ["held", "queue paused"];
  else if (engine.draining) [tone, text] = ["held", "draining"];
  return (
    <span
      class={`engine ${tone}`}
      role="status"
      title={engine?.since ? `version ${engine.version}, since ${clock(moment(engine.since), now.value)}` : ""}
    >
      <span class="dot" aria-hidden="true" />
      <span class="text">{text}</span>
    </span>
  );
}

function Banners(): JSX.Element {
  const shown = status.value;
  const engine = shown?.engine;
  const open = shown ? shown.counts.active + shown.counts.waiting : 0;
  return (
    <div class="banners" role="status">
      {connection.value === "lost" ? (
        <p class="banner bad">
          <b>The connection is lost.</b>{" "}
          {shown ? `The page shows the state of ${clock(moment(shown.at), now.value, true)}. ` : ""}
          It connects again by itself. If you use a tunnel, check <code>ssh -L</code>; on the server, start{" "}
          <code>stoker web</code>.
        </p>
      ) : null}
      {connection.value === "live" && engine && !engine.running && (open > 0 || !shown.devices.length) ? (
        <p class="banner held">
          <b>The engine is stopped.</b> {engine.seen ? `Last seen ${ago(moment(engine.seen), now.value)}. ` : ""}
          Waiting jobs start when it runs again: <code>stoker engine start</code>
        </p>
      ) : null}
      {engine?.paused ? (
        <p class="banner held">
          <b>The queue is paused{engine.paused.note ? ` (${engine.paused.note})` : ""}.</b>{" "}
          <code>stoker resume --queue</code>
        </p>
      ) : null}
      {trouble.value ? (
        <p class="banner bad">
          <b>The queue cannot be read:</b> {trouble.value}
        </p>
      ) : null}
      {engine?.trouble ? <p class="banner bad">{engine.trouble}</p> : null}
      {engine?.silence ? <p class="banner held">{engine.silence}</p> : null}
    </div>
  );
}

function Refused(): JSX.Element {
  return (
    <main class="refused">
      <Empty title="This browser has no access.">
        <p>
          Type <code>stoker web</code> on the server, and open the link that it prints. It is needed once in 30 days for
          each browser, and again after the server made a new token.
        </p>
        <p>
          <button type="button" class="primary" onClick={() => location.reload()}>
            Try again
          </button>
        </p>
      </Empty>
    </main>
  );
}

const KEYS: [string, string][] = [
  ["1 – 5", "Overview, Timeline, Jobs, History, Sweeps"],
  ["/", "search"],
  ["↑ ↓ or j k", "move in the table"],
  ["Enter", "open the job or the sweep"],
  ["Space", "choose the job; with the mouse, Shift chooses a range"],
  ["c", "cancel"],
  ["r", "retry"],
  ["p", "hold or release"],
  ["g", "let a preemptible job give way"],
  ["+", "priority"],
  ["f", "follow the log"],
  ["← → + −", "move and zoom the timeline"],
  ["t", "theme"],
  ["Esc", "clear the choice, or back"],
];

function Help(): JSX.Element | null {
  if (!helpShown.value) return null;
  const close = (): void => {
    helpShown.value = false;
  };
  return (
    <Modal title="Keys" close={close}>
      <dl class="keys">
        {KEYS.map(([key, meaning]) => (
          <div key={key}>
            <dt>{key}</dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <div class="buttons">
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
    </Modal>
  );
}
