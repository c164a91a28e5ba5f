// What both views use: elements, requests to the server, the status at the top.

export const byId = (id) => document.getElementById(id);

export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

// Paths are relative, so that the page also works below a proxy's path.
export function request(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem("octavo-key");
  if (key) headers.Authorization = `Bearer ${key}`;
  return fetch(path, { ...options, headers });
}

export async function errorText(response) {
  if (response.status === 401) return "The server asks for an API key: see the button at the top.";
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

export function setStatus(state, text) {
  const shown = byId("status");
  if (shown.dataset.state === state && shown.lastChild.textContent === text) return;
  shown.dataset.state = state;
  shown.lastChild.textContent = text;
}
