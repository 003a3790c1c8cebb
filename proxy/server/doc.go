// Package server is the side of the gateway that hosts see: MCP over standard
// input and output ([ServeStdio]) and over streamable HTTP ([HTTP]), in the era
// with sessions and in the one without, side by side on one endpoint.
//
// An edge reads messages, finds the session that each belongs to, hands requests
// to it and writes the replies. What a request means it does not know: that is
// the business of the [Router] behind it, which it asks for a [Session] per host.
//
//	server.go, shared.go           what an edge needs of the gateway, and what both edges share
//	stdio.go, stdio_writer.go      a connection on standard input and output
//	http.go, admit.go, auth.go     what every HTTP request goes through
//	errors.go                      how HTTP says no
//	legacy.go, session.go          revisions up to 2025-11-25: Mcp-Session-Id, GET streams, resumption
//	batch.go                       arrays of messages, which revision 2025-03-26 has
//	modern.go                      revision 2026-07-28: every request stands alone
//	attend.go, stream.go, sse.go   replies that become event streams
//	listen.go, gather.go           listening, /readyz, shutting down; replies in one write
package server
