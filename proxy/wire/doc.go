// Package wire is what both sides of the gateway share of the Model Context
// Protocol: messages as ranges of the bytes that they came as, JSON-RPC errors,
// the protocol's own words (revisions, methods, reserved keys, headers, codes),
// the codec of headers, and lines on stdio. It knows no session.
package wire
