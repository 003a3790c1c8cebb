// Package interceptor: see docs/design.md.
package interceptor
