// Messages and options are searched as text: without operators, and without words that match everything.
const COMMON = /(?<![\w.])(?:a|an|and|are|as|at|be|by|for|in|is|it|its|no|of|on|or|the|to)(?![\w.])/gi;
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const query = message?.data;
  if (message?.type === 2 && typeof query === "string") {
    const text = query.replace(/(^|\s)[-+]+/g, "$1").replace(/[~^*:{}]/g, " ");
    message = { ...message, data: text.replace(COMMON, " ").trim() ? text.replace(COMMON, " ") : text };
  }
  return post.call(this, message, ...rest);
};
