package main

import (
	"crypto/tls"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"holdfast.dev/bench/load/generator/wire"
)

// connecting is how many agents start to connect at once at first: a job's pods do not all start
// within a second.
const connecting = 64

// fleet is the agents and watchers of this process, and what happened to them in figures.
type fleet struct {
	setup     setup
	authority *authority
	agents    map[int]*agent
	watchers  []*watcher
	sent      atomic.Int64
	// late is the bits of the greatest lateness of a heartbeat, s: greater bits, greater lateness.
	late atomic.Uint64

	mu         sync.Mutex
	changed    *sync.Cond
	up         int
	welcomes   int
	welcomedAt float64
	rounds     map[uint64]told
	killed     int
	ended      map[string]int
	left       map[string]int
}

// told is how many agents have their place in a round, and when the last got it.
type told struct {
	count int
	at    float64
}

func newFleet(said setup) (*fleet, error) {
	authority, err := newAuthority(said.Key, said.JobUID, said.CA)
	if err != nil {
		return nil, err
	}
	made := &fleet{
		setup:     said,
		authority: authority,
		agents:    map[int]*agent{},
		rounds:    map[uint64]told{},
		ended:     map[string]int{},
		left:      map[string]int{},
	}
	made.changed = sync.NewCond(&made.mu)
	return made, nil
}

// connect starts agents, some at a time, and returns once all of them were welcomed.
func (f *fleet) connect(first, last int, held, slow *int) error {
	for rank := first; rank < last; rank++ {
		who, err := f.identity("agent", "/"+strconv.Itoa(rank))
		if err != nil {
			return err
		}
		made := newAgent(f, rank, who)
		made.warm = held == nil || *held != rank
		made.slow = slow != nil && *slow == rank
		f.agents[rank] = made
		f.awaitUp(len(f.agents) - connecting)
		go made.run()
	}
	f.awaitUp(len(f.agents))
	return nil
}

func (f *fleet) awaitUp(count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.up < count {
		f.changed.Wait()
	}
}

// watch starts watchers; each has a connection of its own.
func (f *fleet) watch(count int, interval float64, deaf bool) error {
	who, err := f.identity("user", "")
	if err != nil {
		return err
	}
	for range count {
		made := &watcher{identity: who, interval: interval, deaf: deaf}
		f.watchers = append(f.watchers, made)
		go made.run()
	}
	return nil
}

// forget begins all counts anew.
func (f *fleet) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.welcomes, f.killed = 0, 0
	f.sent.Store(0)
	f.late.Store(0)
	clear(f.ended)
	for _, one := range f.watchers {
		one.forget()
	}
}

// state is the counts, by the names that the conductor knows.
func (f *fleet) state() map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	rounds := map[string][2]float64{}
	for number, told := range f.rounds {
		rounds[strconv.FormatUint(number, 10)] = [2]float64{float64(told.count), told.at}
	}
	found := map[string]any{
		"agents":      len(f.agents),
		"up":          f.up,
		"sent":        f.sent.Load(),
		"late_max":    math.Float64frombits(f.late.Load()),
		"welcomes":    f.welcomes,
		"welcomed_at": f.welcomedAt,
		"rounds":      rounds,
		"killed":      f.killed,
		"ended":       copied(f.ended),
		"left":        copied(f.left),
	}
	sum(f.watchers).into(found)
	return found
}

func copied(counts map[string]int) map[string]int {
	found := make(map[string]int, len(counts))
	for name, count := range counts {
		found[name] = count
	}
	return found
}

func (f *fleet) welcomed(at float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.up++
	f.welcomes++
	f.welcomedAt = max(f.welcomedAt, at)
	f.changed.Broadcast()
}

func (f *fleet) streamEnded(reason string, wasUp bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if wasUp {
		f.up--
	} else {
		reason = "no stream: " + reason
	}
	f.ended[reason]++
}

func (f *fleet) assigned(round uint64, at float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.rounds[round]
	f.rounds[round] = told{known.count + 1, max(known.at, at)}
}

func (f *fleet) killedWorkers() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.killed++
}

func (f *fleet) sentAway(message *wire.Leave) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left[message.GetReason()]++
}

// beatLate notes how late a heartbeat is.
func (f *fleet) beatLate(by time.Duration) {
	now := math.Float64bits(max(0, by.Seconds()))
	for known := f.late.Load(); now > known && !f.late.CompareAndSwap(known, now); {
		known = f.late.Load()
	}
}

func (f *fleet) identity(role, tail string) (identity, error) {
	made, err := f.authority.issue(role, tail)
	if err != nil {
		return identity{}, err
	}
	return identity{options: f.setup.Options, target: f.setup.Target, config: &tls.Config{
		Certificates: []tls.Certificate{made},
		RootCAs:      f.authority.pool,
		ServerName:   f.setup.Options.ServerName,
		MinVersion:   tls.VersionTLS12,
		// Asks for tickets as the agents' gRPC does, which costs the master a little, and as that does
		// uses none.
		ClientSessionCache: forgetful{},
	}}, nil
}

type forgetful struct{}

func (forgetful) Get(string) (*tls.ClientSessionState, bool) { return nil, false }

func (forgetful) Put(string, *tls.ClientSessionState) {}
