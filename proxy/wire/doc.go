// Package wire is what the edges, the links and the core of the gateway share of
// the Model Context Protocol: a message as ranges of the bytes that it came as,
// JSON-RPC errors, and the protocol's own words (revisions, methods, reserved
// keys, headers, codes). It knows no transport and holds no state.
package wire
