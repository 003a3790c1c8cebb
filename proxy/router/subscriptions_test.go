package router

import (
	"strconv"
	"testing"
)

// A subscription that two requests make at once stays when one of them fails, and ends when the host
// unsubscribes.
func TestSubscriptionOfTwoRequests(t *testing.T) {
	s := subscriptions{count: &shares{most: maxAllSubscriptions}, open: map[subscription]int{}}
	at := func(server string) int { return len(s.at(server)) }
	sub := subscription{"likely", "a:b"}
	_ = s.add(sub, false)
	_ = s.add(sub, false)
	s.move(sub, "")
	if at("likely") != 1 {
		t.Error("the subscription of the second request is forgotten with the first one")
	}
	_ = s.add(sub, false)
	s.move(sub, "owner") // another server has the resource
	if at("likely") != 1 || at("owner") != 1 {
		t.Errorf("subscriptions: %v", s.open)
	}
	_ = s.add(sub, false)
	s.restore(s.end("a:b"))
	s.move(sub, "")
	s.move(sub, "")
	if at("likely") != 0 || at("owner") != 1 {
		t.Errorf("subscriptions: %v", s.open)
	}
	s.end("a:b")
	s.move(subscription{"owner", "a:b"}, "") // fails after the end
	if len(s.open) != 0 || s.count.all != 0 {
		t.Errorf("subscriptions after the end: %v, %d are counted", s.open, s.count.all)
	}
}

// All sessions together have a bound on their subscriptions, of which one of several principals may have half. What ends is no
// longer counted, in whatever way it ends.
func TestAllSubscriptionsAreBounded(t *testing.T) {
	count := &shares{most: maxAllSubscriptions}
	session := func(principal string) *subscriptions {
		return &subscriptions{count: count, principal: principal, open: map[subscription]int{}}
	}
	var hers []*subscriptions
	n := 0
	for err := error(nil); err == nil; {
		s := session("alice")
		hers = append(hers, s)
		for range maxSubscriptions {
			if err = s.add(subscription{"up", strconv.Itoa(n)}, true); err != nil {
				break
			}
			n++
		}
	}
	if n != maxAllSubscriptions/2 {
		t.Errorf("alice has %d subscriptions", n)
	}
	if err := session("bob").add(subscription{"up", "a:b"}, true); err != nil {
		t.Errorf("bob's first subscription: %v", err)
	}
	hers[0].restore(hers[0].end("0"))
	hers[0].end("1")
	hers[0].move(subscription{"up", "2"}, "other")
	hers[0].move(subscription{"up", "3"}, "")
	hers[1].keep(func(string) bool { return false })
	if want := n - 2 - maxSubscriptions; count.own["alice"] != want {
		t.Errorf("alice has %d subscriptions, want %d", count.own["alice"], want)
	}
	for _, s := range hers {
		s.close()
		s.move(subscription{"up", "late"}, "other")
	}
	if count.all != 1 || len(count.own) != 1 {
		t.Errorf("after all sessions of alice's %d are counted, by principal %v", count.all, count.own)
	}
}
