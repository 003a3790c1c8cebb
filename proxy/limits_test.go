package proxy

// Limits that docs/wire.md promises. The packages have them as constants of their own.
const (
	maxServerRequests = 1000 // server requests under way, a session
	maxQuestions      = 100  // open questions of one call
	maxSuspended      = 1000 // calls that wait for the hosts of one principal
	maxTasks          = 1000 // tasks a session remembers
	maxSubscriptions  = 1000 // resources a session or a listen is told of
)
