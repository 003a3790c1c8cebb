package router

import "testing"

// A subscription that two requests make at once stays when one of them fails, and ends when the host
// unsubscribes.
func TestSubscriptionOfTwoRequests(t *testing.T) {
	s := subscriptions{open: map[subscription]int{}}
	at := func(server string) int { return len(s.at(server)) }
	sub := subscription{"likely", "a:b"}
	s.add(sub)
	s.add(sub)
	s.move(sub, "")
	if at("likely") != 1 {
		t.Error("the subscription of the second request is forgotten with the first one")
	}
	s.add(sub)
	s.move(sub, "owner") // another server has the resource
	if at("likely") != 1 || at("owner") != 1 {
		t.Errorf("subscriptions: %v", s.open)
	}
	s.add(sub)
	s.restore(s.end("a:b"))
	s.move(sub, "")
	s.move(sub, "")
	if at("likely") != 0 || at("owner") != 1 {
		t.Errorf("subscriptions: %v", s.open)
	}
	s.end("a:b")
	s.move(subscription{"owner", "a:b"}, "") // fails after the end
	if len(s.open) != 0 {
		t.Errorf("subscriptions after the end: %v", s.open)
	}
}
