package main

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	"holdfast.dev/bench/load/generator/wire"
)

const (
	watchMethod = "/holdfast.v1.JobService/WatchJob"
	failed      = "WorkerFailed"
)

// watcher is one WatchJob stream.
type watcher struct {
	identity identity
	interval float64
	deaf     bool

	mu       sync.Mutex
	watching bool
	messages int
	// failedAt is when the newest news of a failed worker came; 0: none did.
	failedAt float64
	// end is how its stream ended.
	end string
}

// run watches until the stream ends.
func (w *watcher) run() {
	err := w.watch()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watching = false
	w.end = reason(err)
}

func (w *watcher) watch() error {
	made, err := w.identity.dial(connectLimit)
	if err != nil {
		return err
	}
	defer made.Close()
	call, err := made.NewStream(
		context.Background(), &grpc.StreamDesc{ServerStreams: true}, watchMethod,
	)
	if err != nil {
		return err
	}
	if err := call.SendMsg(&wire.WatchJobRequest{MinIntervalSeconds: w.interval}); err != nil {
		return err
	}
	if err := call.CloseSend(); err != nil {
		return err
	}
	for first := true; ; first = false {
		response := new(wire.WatchJobResponse)
		if err := call.RecvMsg(response); err != nil {
			return err
		}
		w.take(response, monotonic())
		if first && w.deaf {
			if err := made.shut(); err != nil {
				return err
			}
		}
	}
}

func (w *watcher) take(response *wire.WatchJobResponse, at float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watching = true
	w.messages++
	if response.GetEvent().GetReason() == failed {
		w.failedAt = at
	}
}

func (w *watcher) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.messages, w.failedAt = 0, 0
}

// watched is the counts of many watchers.
type watched struct {
	watching, messages, told int
	toldAt                   float64
	ends                     map[string]int
}

func sum(watchers []*watcher) watched {
	found := watched{ends: map[string]int{}}
	for _, one := range watchers {
		one.add(&found)
	}
	return found
}

func (w *watcher) add(to *watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watching {
		to.watching++
	}
	to.messages += w.messages
	if w.failedAt > 0 {
		to.told++
		to.toldAt = max(to.toldAt, w.failedAt)
	}
	if w.end != "" {
		to.ends[w.end]++
	}
}

func (w watched) into(state map[string]any) {
	state["watching"] = w.watching
	state["watched"] = w.messages
	state["watch_ends"] = w.ends
	state["told"] = w.told
	state["told_at"] = w.toldAt
}
