// Package proxy is the gateway: it opens the state, makes the parts, and ties them together.
//
//	host ── server ── router ── chain ─┬─ upstream ── server process, HTTP endpoint
//	                     │             ├─ bridge around it, if host and server speak different eras
//	                  catalog          ├─ files, the built-in server
//	                                   └─ tools, foldgate's own
//
// docs/design.md shows all packages, which imports which, and the path of one call through them.
//
// A message is bytes from end to end. A [wire.Message] names the ranges of a JSON-RPC message, and
// bytes are spliced only where something must change. So members that foldgate does not know pass
// unchanged.
package proxy
