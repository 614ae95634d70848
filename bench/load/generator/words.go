package main

import (
	"fmt"
	"time"

	"holdfast.dev/bench/load/generator/wire"
)

// What an agent tells about itself.

const (
	firstPid   = 1000
	firstPort  = 20_000
	sinceStep  = 0.25
	samplesOf  = 64
	firstAfter = 1.5
	address    = "127.0.0.1"
	release    = "0.1.0"
)

// beat sends a heartbeat; the caller holds mu.
func (a *agent) beat() {
	a.sequence++
	heartbeat := &wire.Heartbeat{Sequence: a.sequence}
	if a.running {
		for local := range uint32(a.fleet.setup.Ranks) {
			heartbeat.Ranks = append(heartbeat.Ranks, a.progress(local))
		}
	}
	a.send(&wire.SessionRequest{Message: &wire.SessionRequest_Heartbeat{Heartbeat: heartbeat}})
}

func (a *agent) progress(local uint32) *wire.RankProgress {
	step := a.step()
	return &wire.RankProgress{
		LocalRank:        local,
		Round:            a.fence.Round,
		Step:             step,
		StepSeconds:      stepSeconds,
		SinceStepSeconds: sinceStep,
		Samples:          samplesOf * step,
		Loss:             a.loss,
		Section:          wire.RankSection_RANK_SECTION_TRAIN,
		HasSdk:           true,
		Pid:              firstPid + local,
		FirstStep:        1,
		FirstStepSeconds: firstAfter,
	}
}

func (a *agent) step() uint64 {
	return 1 + uint64(time.Since(a.began).Seconds()/stepSeconds)
}

func (a *agent) hello() *wire.Hello {
	hello := &wire.Hello{
		JobUid:         a.fleet.setup.JobUID,
		NodeRank:       uint32(a.rank),
		AgentId:        fmt.Sprintf("agent-%05d-of-the-load-benchmark", a.rank),
		PodUid:         fmt.Sprintf("pod-%05d-of-the-load-benchmark", a.rank),
		AgentPid:       1,
		Host:           fmt.Sprintf("host-%d", a.rank),
		Address:        address,
		Version:        release,
		LocalWorldSize: uint32(a.fleet.setup.Ranks),
		Warm:           a.warm && a.fence.Epoch > 0,
		Unmanaged:      true,
		Round:          a.fence.Round,
		Digest:         a.digest,
	}
	if a.running {
		hello.Step = a.step()
		for local := range hello.LocalWorldSize {
			hello.Workers = append(hello.Workers, &wire.RunningWorker{
				LocalRank: local, Pid: firstPid + local, Round: a.fence.Round,
			})
		}
		hello.Assignment = a.assignment
	}
	return hello
}

// take does what the master says; it was read at this moment.
func (a *agent) take(response *wire.SessionResponse, at float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch said := response.Message.(type) {
	case *wire.SessionResponse_Welcome:
		a.welcome(said.Welcome, response.Fence, at)
	case *wire.SessionResponse_Assignment:
		a.fleet.assigned(response.Fence.GetRound(), at)
		a.fence.Round = response.Fence.GetRound()
		a.assignment = said.Assignment
		a.startWorkers()
	case *wire.SessionResponse_StopRound:
		a.running = false
		a.stopped()
		a.done(said.StopRound.GetCommandId())
	case *wire.SessionResponse_PrepareStore:
		a.send(&wire.SessionRequest{Message: &wire.SessionRequest_StorePrepared{
			StorePrepared: &wire.StorePrepared{
				StoreId: said.PrepareStore.GetStoreId(),
				Host:    address,
				Port:    uint32(firstPort + a.rank),
			},
		}})
	case *wire.SessionResponse_DumpStacks:
		a.done(said.DumpStacks.GetCommandId())
	case *wire.SessionResponse_Leave:
		a.running = false
		a.fleet.sentAway(said.Leave)
	case *wire.SessionResponse_Digest:
		a.digest = said.Digest
	case *wire.SessionResponse_HeartbeatInterval:
		a.interval = said.HeartbeatInterval.GetHeartbeatSeconds()
	}
}

func (a *agent) welcome(message *wire.Welcome, fence *wire.Fence, at float64) {
	again := a.fence.Epoch > 0
	a.interval = message.GetHeartbeatSeconds()
	a.fence.Epoch, a.fence.Incarnation = fence.GetEpoch(), fence.GetIncarnation()
	if a.running && message.GetRound() != a.fence.Round {
		a.running = false
		a.fleet.killedWorkers()
		a.stopped()
	}
	a.up = true
	a.crowd = int(message.GetMaxReplicas())
	a.patience = welcomeDeadline(a.crowd)
	a.fleet.welcomed(at)
	if a.warm && !again {
		a.sendWarm()
	}
}

// startWorkers says that they run, and a step later that they have made it, unless another
// assignment comes before.
func (a *agent) startWorkers() {
	a.running = false
	a.starts++
	number := a.starts
	a.after(number, spawnSeconds, func() {
		a.started(&wire.RoundStarted{KilledSeconds: 0.01, SpawnedSeconds: spawnSeconds})
		a.after(number, stepSeconds, func() {
			a.running = true
			a.started(&wire.RoundStarted{
				FirstStep: true, Step: a.step(), FirstStepSeconds: stepSeconds,
			})
		})
	})
}

func (a *agent) after(number int, pause float64, do func()) {
	time.AfterFunc(seconds(pause), func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.starts == number {
			do()
		}
	})
}

func (a *agent) started(message *wire.RoundStarted) {
	a.send(&wire.SessionRequest{Message: &wire.SessionRequest_RoundStarted{RoundStarted: message}})
}

func (a *agent) stopped() {
	a.send(&wire.SessionRequest{Message: &wire.SessionRequest_RoundStopped{
		RoundStopped: &wire.RoundStopped{},
	}})
}

func (a *agent) done(command uint64) {
	a.send(&wire.SessionRequest{Message: &wire.SessionRequest_CommandDone{
		CommandDone: &wire.CommandDone{CommandId: command, Ok: true},
	}})
}
