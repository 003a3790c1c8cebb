// Package scrub: see docs/design.md.
package scrub
