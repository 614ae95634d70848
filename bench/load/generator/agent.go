package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"holdfast.dev/bench/load/generator/wire"
)

const (
	sessionMethod = "/holdfast.v1.AgentService/Session"
	// spawnSeconds is what killing and forking takes, from an assignment to running workers.
	spawnSeconds  = 0.05
	stepSeconds   = 0.5
	firstInterval = 0.5
	// mostClockError is how far a clock that is kept by NTP in one data centre may be off, s.
	mostClockError = 0.001
)

var errNoWelcome = errors.New("no Welcome in time")

// agent is one node as the master sees it; it trains as soon as it has a world.
type agent struct {
	fleet    *fleet
	rank     int
	identity identity
	// slow: deafen will be called; it reads no more then.
	slow   bool
	jitter *rand.Rand
	began  time.Time
	deaf   chan struct{}

	// mu is over all that follows. It is held while a message is sent, so that the state and what was
	// said of it are one.
	mu         sync.Mutex
	warm       bool
	up         bool
	link       *link
	call       grpc.ClientStream
	patience   float64
	interval   float64
	crowd      int
	running    bool
	loss       float64
	digest     *wire.StateDigest
	assignment *wire.WorldAssignment
	fence      wire.Fence
	// clockError is what its clock is ahead of the true time, s.
	clockError float64
	sequence   uint64
	// starts counts assignments: the start of workers ends where another began.
	starts int
}

func newAgent(fleet *fleet, rank int, who identity) *agent {
	jitter := rand.New(rand.NewPCG(uint64(rank), 0))
	return &agent{
		fleet:      fleet,
		rank:       rank,
		identity:   who,
		jitter:     jitter,
		began:      time.Now(),
		deaf:       make(chan struct{}),
		patience:   welcomeLimit,
		interval:   firstInterval,
		crowd:      1,
		loss:       1,
		clockError: (2*jitter.Float64() - 1) * mostClockError,
	}
}

// run connects again and again.
func (a *agent) run() {
	for attempt := 0; ; {
		err := a.oneStream(attempt)
		a.mu.Lock()
		if errors.Is(err, errNoWelcome) {
			a.patience = longer(a.patience)
		}
		wasUp, crowd := a.up, a.crowd
		a.up, a.call, a.link = false, nil, nil
		a.mu.Unlock()
		a.fleet.streamEnded(reason(err), wasUp)
		attempt++
		if wasUp {
			attempt = 0
		}
		refused := errors.Is(err, errRefused)
		time.Sleep(seconds(delay(attempt, a.jitter.Float64(), refused, crowd)))
	}
}

func reason(err error) string {
	switch {
	case errors.Is(err, io.EOF):
		return "OK"
	case errors.Is(err, errRefused), errors.Is(err, errNoWelcome):
		return err.Error()
	}
	return status.Code(err).String()
}

// oneStream returns why the stream ended or could not be had.
func (a *agent) oneStream(attempt int) error {
	made, err := a.identity.dial(connectDeadline(a.crowd, attempt))
	if err != nil {
		return err
	}
	defer made.Close()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	late := time.AfterFunc(seconds(a.patience), func() { cancel(errNoWelcome) })
	call, err := made.NewStream(
		ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, sessionMethod,
	)
	if err == nil {
		err = a.converse(made, call, late)
	}
	late.Stop()
	if cause := context.Cause(ctx); errors.Is(cause, errNoWelcome) {
		return cause
	}
	return err
}

func (a *agent) converse(made *link, call grpc.ClientStream, late *time.Timer) error {
	a.mu.Lock()
	a.link, a.call = made, call
	a.send(&wire.SessionRequest{Message: &wire.SessionRequest_Hello{Hello: a.hello()}})
	a.mu.Unlock()
	for first := true; ; first = false {
		response := new(wire.SessionResponse)
		if err := call.RecvMsg(response); err != nil {
			return err
		}
		at := monotonic()
		if first {
			late.Stop()
		}
		a.take(response, at)
		if first {
			a.beatAt(call, a.nextBeat(time.Now()))
		}
		select {
		case <-a.deaf:
			select {}
		default:
		}
	}
}

// deafen makes it read no more.
func (a *agent) deafen() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.slow || a.link == nil {
		return fmt.Errorf("agent %d is not connected, or not the slow one", a.rank)
	}
	close(a.deaf)
	return a.link.shut()
}

// sayWarm says that a round may start here; the moment just before.
func (a *agent) sayWarm() float64 {
	at := monotonic()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warm = true
	a.sendWarm()
	return at
}

func (a *agent) sendWarm() {
	warmed := &wire.Warmed{Seconds: 1}
	a.send(&wire.SessionRequest{Message: &wire.SessionRequest_Warmed{Warmed: warmed}})
}

// fail says that a worker died by a signal; the moment just before.
func (a *agent) fail() float64 {
	at := monotonic()
	a.mu.Lock()
	defer a.mu.Unlock()
	exited := &wire.WorkerExited{
		Rank: uint32(a.rank), Pid: firstPid, ExitCode: -9, Step: a.step(),
	}
	a.running = false
	a.send(&wire.SessionRequest{Message: &wire.SessionRequest_WorkerExited{WorkerExited: exited}})
	return at
}

// tellLoss sends a heartbeat with this loss now; the moment just before.
func (a *agent) tellLoss(loss float64) float64 {
	at := monotonic()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.loss = loss
	a.beat()
	return at
}

// send sends one message; without a stream it does nothing. A stream that broke is the reader's to
// notice.
func (a *agent) send(message *wire.SessionRequest) {
	if a.call == nil {
		return
	}
	message.Fence = &a.fence
	a.fleet.sent.Add(1)
	_ = a.call.SendMsg(message)
}

// beatAt sends the next heartbeat of a stream when it is due, and so on while the stream lasts.
func (a *agent) beatAt(call grpc.ClientStream, due time.Time) {
	time.AfterFunc(time.Until(due), func() {
		now := time.Now()
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.call != call {
			return
		}
		a.fleet.beatLate(now.Sub(due))
		a.beat()
		a.beatAt(call, a.nextBeat(now))
	})
}

// nextBeat is when the next heartbeat is due, by a clock that is as wrong as those of a cluster.
func (a *agent) nextBeat(now time.Time) time.Time {
	wall := float64(now.UnixNano())/1e9 + a.clockError
	return now.Add(seconds(pause(a.rank, a.interval, wall)))
}
