// Package folding manages branches. A branch is an isolated subtask of an agent session with a
// token budget, a deadline and exactly one end. Folding a branch means to end it with a message
// for its parent. The example of the package shows the way of a branch.
//
// # Promises
//
// A branch ends once. A return, the deadline, the budget, the end of the parent or of the session
// and the shutdown all call one function under one lock. The first one wins. Children end before
// their parent, deepest first. Running calls are cancelled with an [*EndedError].
//
// A charge is durable before Charge or ChargeUpTo returns. After a crash every delivered token is
// accounted for.
//
// No operation sees a branch past its deadline, even if a timer is late, as on a suspended
// machine: every operation first compares deadlines with the clock.
//
// # Locks
//
// Locks nest in this order: Manager.finished, Manager.publishing, Manager.mu, writer.mu.
// Options.OnEvent runs under the first two only. The database has a lock of its own, which is
// taken under none of these.
package folding
