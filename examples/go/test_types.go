package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"time"
)

// testTypes returns the types of a test app, which docs/app-protocol.md describes.
func testTypes() []Type {
	return []Type{
		{Name: "t-echo", run: func(_ *Context, params json.RawMessage) (any, error) { return params, nil }},
		{Name: "t-error", run: testError},
		{Name: "t-output", run: testOutput},
		{Name: "t-spawn", run: testSpawn},
		{Name: "t-then", run: testThen},
		{Name: "t-wait", run: testWait},
		{Name: "t-exit", run: testExit},
		{Name: "t-child", run: testChild},
		{Name: "t-retire", run: testRetire},
	}
}

func testError(_ *Context, params json.RawMessage) (any, error) {
	var failure Failure
	if err := json.Unmarshal(params, &failure); err != nil {
		return nil, err
	}
	return nil, &failure
}

func testOutput(cx *Context, params json.RawMessage) (any, error) {
	var in struct {
		Progress  json.RawMessage
		Log       []string
		Warn      *string
		Attach    map[string]any
		Heartbeat bool
		Silent    bool
	}
	if err := json.Unmarshal(params, &in); err != nil {
		return nil, err
	}
	silent := func(fields map[string]any) map[string]any {
		if in.Silent {
			fields["silent"] = true
		}
		return fields
	}
	if in.Progress != nil {
		cx.Send("progress", silent(map[string]any{"value": in.Progress}))
	}
	if in.Log != nil {
		cx.Send("log", silent(map[string]any{"lines": in.Log}))
	}
	if in.Warn != nil {
		cx.Send("warn", silent(map[string]any{"message": *in.Warn}))
	}
	if in.Attach != nil {
		cx.Send("attach", in.Attach)
	}
	if in.Heartbeat {
		cx.Send("heartbeat", map[string]any{})
	}
	return nil, nil
}

func testSpawn(cx *Context, params json.RawMessage) (any, error) {
	var in struct {
		Tasks []map[string]any
		Call  bool
	}
	if err := json.Unmarshal(params, &in); err != nil {
		return nil, err
	}
	if in.Call {
		return cx.SpawnNow(in.Tasks...)
	}
	cx.Spawn(in.Tasks...)
	return nil, nil
}

func testThen(cx *Context, params json.RawMessage) (any, error) {
	var in struct{ Task map[string]any }
	if err := json.Unmarshal(params, &in); err != nil {
		return nil, err
	}
	cx.Send("then", map[string]any{"task": in.Task})
	return nil, nil
}

func testWait(cx *Context, params json.RawMessage) (any, error) {
	var in struct{ Ms int64 }
	if err := json.Unmarshal(params, &in); err != nil {
		return nil, err
	}
	select {
	case <-time.After(time.Duration(in.Ms) * time.Millisecond):
		return "waited", nil
	case <-cx.Done():
		return nil, cx.Err()
	}
}

func testExit(_ *Context, params json.RawMessage) (any, error) {
	var in struct{ Code int }
	if err := json.Unmarshal(params, &in); err != nil {
		return nil, err
	}
	os.Exit(in.Code)
	return nil, nil
}

func testChild(cx *Context, _ json.RawMessage) (any, error) {
	cat := exec.CommandContext(cx, "cat")
	cat.Stdin = os.Stdin
	var read strings.Builder
	cat.Stdout = &read
	err := cat.Run()
	return read.Len(), err
}

func testRetire(cx *Context, params json.RawMessage) (any, error) {
	var in struct{ Reason string }
	if err := json.Unmarshal(params, &in); err != nil {
		return nil, err
	}
	cx.app.send("retire", map[string]any{"reason": in.Reason})
	return nil, nil
}
