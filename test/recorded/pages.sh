#!/bin/sh
# Measures the pages of a console: test/recorded/pages.sh LINK, the one-time link that foldgate console
# prints. Each line is the median of three in milliseconds, and the address.
set -eu
jar=$(mktemp)
trap 'rm -f "$jar"' EXIT
base=${1%/enter/*}
curl -fsS -c "$jar" -o /dev/null -X POST "$1"
get() { curl -fsS -b "$jar" "$base$1"; }
until get / >/dev/null 2>&1; do sleep 5; done # the index is made
first() { get "$1" | grep -o "$2" | sed -n 1p; }
record=$(first "/calls?blocked=true" '/records/[^"]*')
branch=$(first "/branches" '/branch?path=[^"]*')
person=$(first /people '/people?principal=[^"&]*' | cut -d= -f2)
for page in / "/?span=year" /calls "/calls?principal=$person" "/calls?tool=tool_13&errors=true" "/calls?sort=tokens" \
	"/calls?sort=ms" "/calls?blocked=true&sort=tokens" "/calls?chain=${record#/records/}" "/calls?correlates=rpc:42" "/calls?orphans=true" "$record" \
	/branches "/branches?sort=tokens" "/branches?page=199" "/branches?open=true" "/branches?principal=$person&sort=tokens" "$branch" \
	/budgets "/people?span=year" "/people?principal=$person&span=year" "/people?by=team&span=year" "/tools?span=year" /integrity; do
	ms=$(for _ in 1 2 3; do curl -fsS -b "$jar" -o /dev/null -w '%{time_total}\n' "$base$page"; done | sort -n | sed -n 2p)
	echo "$ms $page" | awk '{printf "%6.0f ms  %s\n", $1 * 1000, $2}'
done
