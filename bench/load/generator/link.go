package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
	_ "unsafe" // for linkname

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// A connection to the master, with the options of holdfast_wire.channel and small buffers.

const (
	bufferBytes = 2 << 10
	window      = 64 << 10
	// pingLimit is what the agents' gRPC gives a ping on a connection whose kernel still answers;
	// the time-out in their options is TCP's own.
	pingLimit = 60 * time.Second
)

// Agents ping every 5 s; this library makes 10 s of it unless its own least is changed.
//
//go:linkname leastPing google.golang.org/grpc/internal.KeepaliveMinPingTime
var leastPing time.Duration

func allowPings() {
	leastPing = time.Second
}

// closeWindow is an HTTP/2 SETTINGS frame with INITIAL_WINDOW_SIZE 0: it takes from every stream all
// that its sender might still send.
var closeWindow = []byte{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0}

var errRefused = errors.New("refused")

// options are those of gRPC's that a connection has to have here as well.
type options struct {
	KeepaliveMS int    `json:"grpc.keepalive_time_ms"`
	ServerName  string `json:"grpc.ssl_target_name_override"`
	ReceiveMax  int    `json:"grpc.max_receive_message_length"`
	SendMax     int    `json:"grpc.max_send_message_length"`
}

// identity is who somebody is towards the master.
type identity struct {
	options options
	target  string
	config  *tls.Config
}

// link is a connection. Its window can be closed, as that of an application that reads no more, at
// once: gRPC would read 64 KiB ahead for it.
type link struct {
	*grpc.ClientConn
	credentials *witness
}

// witness keeps the connection that a handshake made.
type witness struct {
	credentials.TransportCredentials
	made atomic.Value
}

func (w *witness) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	made, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err == nil {
		w.made.Store(&made)
	}
	return made, info, err
}

func (w *witness) Clone() credentials.TransportCredentials {
	return w
}

// dial connects, handshake included; one attempt may take limit, s.
//
// Returns errRefused where it failed, or was not there after twice as long.
func (i identity) dial(limit float64) (*link, error) {
	made := &link{credentials: &witness{TransportCredentials: credentials.NewTLS(i.config)}}
	conn, err := grpc.NewClient("passthrough:///"+i.target, i.dialOptions(made.credentials, limit)...)
	if err != nil {
		return nil, err
	}
	made.ClientConn = conn
	ctx, cancel := context.WithTimeout(context.Background(), seconds(2*limit))
	defer cancel()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.TransientFailure || !conn.WaitForStateChange(ctx, state) {
			conn.Close()
			return nil, errRefused
		}
	}
	return made, nil
}

func (i identity) dialOptions(by credentials.TransportCredentials, limit float64) []grpc.DialOption {
	pings := time.Duration(i.options.KeepaliveMS) * time.Millisecond
	return []grpc.DialOption{
		grpc.WithTransportCredentials(by),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: pings, Timeout: pingLimit, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: seconds(maxDelay), Multiplier: 1},
			MinConnectTimeout: seconds(limit),
		}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(i.options.ReceiveMax), grpc.MaxCallSendMsgSize(i.options.SendMax),
		),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(window),
		grpc.WithReadBufferSize(bufferBytes),
		grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithSharedWriteBuffer(true),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithDisableHealthCheck(),
		grpc.WithIdleTimeout(0),
	}
}

// shut closes the window. What this library writes goes out in whole frames as long as it is smaller
// than its buffer, and so this may be written between.
func (l *link) shut() error {
	made, ok := l.credentials.made.Load().(*net.Conn)
	if !ok {
		return errors.New("there is no connection")
	}
	if _, err := (*made).Write(closeWindow); err != nil {
		return fmt.Errorf("window: %w", err)
	}
	return nil
}
