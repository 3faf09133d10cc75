import { render } from "preact";

import { App } from "./app";
import { watchRoute } from "./router";
import { start } from "./state";
import { watchTheme } from "./theme";

const root = document.getElementById("page");
if (root) {
  watchTheme();
  watchRoute();
  start();
  render(<App />, root);
}
