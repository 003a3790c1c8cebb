package proxy
type session struct{}
