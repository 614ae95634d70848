// The load benchmark's agents and watchers, built by scripts/load_generator.sh.
module holdfast.dev/bench/load/generator

go 1.25.0

tool google.golang.org/protobuf/cmd/protoc-gen-go

require (
	golang.org/x/sys v0.39.0
	google.golang.org/grpc v1.79.3
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/net v0.48.0 // indirect
	golang.org/x/text v0.32.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20251202230838-ff82c1b0f217 // indirect
)
