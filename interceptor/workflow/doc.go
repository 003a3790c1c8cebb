// Package workflow keeps one thread through the calls of tools that have none:
// discover, activate, ask for the status.
//
// A workflow is a tree of steps. A tool whose rule is open starts one and gets
// a handle, ctx_<unix seconds>_<26 random characters>; a link tool adds a step,
// with a handle of its own; a status tool attaches to a step; a close tool ends
// the workflow. A step's path is the handles from its root to itself, in the
// grammar of package contextpath, and stands beside the branch a call runs in.
//
//	rules, faults := workflow.Compile(specs)       // the configuration, once
//	store, err := workflow.OpenStore(path)
//	e := workflow.NewEngine(rules, store, time.Now)
//	step, err := e.Plan(ctx, workflow.Request{...})  // no effect: which step is this call?
//	err = e.Begin(ctx, step)                         // the step exists, one attempt more
//	err = e.End(ctx, step, workflow.Outcome{...})    // its status, and what later calls join on
//
// Which workflow a call belongs to is decided by evidence, strongest first: the
// handle given, an id of the server's own seen before, a value that an earlier
// result held, the last workflow of the session. The evidence is part of the
// step, so that an auditor can leave inferred links out. A handle that is
// unknown, expired, closed or somebody else's is refused with [ErrUnknown],
// whichever it is, and nothing is minted for it.
//
// What a step was called with and what came of it is not kept here: only hashes
// of the values that calls are joined on.
package workflow
