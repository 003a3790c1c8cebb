// Package subagents has the definitions of subagents that foldgate connect installs, by host.
package subagents

import "embed"

// Files has HOST/fold-explorer.md for each host with a definition.
//
//go:embed */fold-explorer.md
var Files embed.FS
