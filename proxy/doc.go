// Package proxy is the gateway: it opens the state, makes the rooms, and ties them together.
//
//	cfg, err := config.Find("foldgate.yaml")
//	g, err := proxy.New(cfg, log)
//	defer g.Close(ctx)
//	err = g.RunStdio(ctx, os.Stdin, os.Stdout) // or g.RunHTTP
//
// # The rooms
//
//	host ── server ── router ── chain ─┬─ upstream ── server process, HTTP endpoint
//	                     │             ├─ bridge around it, if host and server speak different eras
//	                  catalog          ├─ files, the built-in server
//	                                   └─ tools, foldgate's own
//
// docs/design.md shows all packages, and which imports which.
//
// # One call
//
//  1. A server reads a message and hands it to the router as a request of a session.
//  2. The router makes an [interceptor.Call] of it and asks the catalog for the owner of its name.
//  3. The call goes down the chain (chain.go): it is recorded, put into its branch, and charged. On
//     the way back the result is scrubbed, folded, charged and recorded.
//  4. At the end of the chain the router sends the request on the owner's connection. Messages that
//     the server sends meanwhile go to the stream of the request that caused them.
//
// A message is bytes from end to end. A [wire.Message] names the ranges of a JSON-RPC message, and
// bytes are spliced only where something must change. So members that foldgate does not know pass
// unchanged.
package proxy
