//go:build !race

package testbin

// Race tells whether the test has the race detector.
const Race = false
