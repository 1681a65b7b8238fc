package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Handler runs an attempt and returns its result, which is encoded as JSON.
type Handler func(cx *Context, params json.RawMessage) (any, error)

// Type is a declared task type.
type Type struct {
	Name   string         `json:"name"`
	Params map[string]any `json:"params,omitempty"`
	Doc    string         `json:"doc,omitempty"`
	Policy map[string]any `json:"policy,omitempty"`
	run    Handler
}

// Failure is an error with an outcome and a stable name for programs. Any other error is retried.
type Failure struct {
	Outcome string `json:"outcome"`
	Kind    string `json:"kind"`
	Message string `json:"message"`
	AfterMs *int64 `json:"after_ms,omitempty"`
}

func (failure *Failure) Error() string { return failure.Message }

// Context is that of one attempt. It is cancelled when the attempt should stop.
type Context struct {
	context.Context
	ID  string
	app *app
	n   uint64
}

// Send sends a message about the attempt.
func (cx *Context) Send(kind string, fields map[string]any) {
	fields["n"] = cx.n
	cx.app.send(kind, fields)
}

// Spawn publishes children with the result of the attempt.
func (cx *Context) Spawn(tasks ...map[string]any) {
	cx.Send("spawn", map[string]any{"tasks": tasks})
}

type attempt struct {
	N      uint64          `json:"n"`
	Type   string          `json:"type"`
	ID     string          `json:"id"`
	LeftMs int64           `json:"left_ms"`
	Params json.RawMessage `json:"params"`
}

type message struct {
	Attempt *attempt `json:"attempt"`
	Cancel  *struct {
		N uint64 `json:"n"`
	} `json:"cancel"`
	Ping  map[string]any `json:"ping"`
	Reply *reply         `json:"reply"`
}

type reply struct {
	Call  uint64   `json:"call"`
	IDs   []string `json:"ids"`
	Error *Failure `json:"error"`
}

type app struct {
	types   map[string]Type
	running sync.WaitGroup

	writing sync.Mutex
	socket  net.Conn

	sharing  sync.Mutex
	cancels  map[uint64]context.CancelFunc
	calls    map[uint64]chan reply
	lastCall uint64
}

// The number at the beginning of an attempt whose params cannot be read.
var number = regexp.MustCompile(`^\{"attempt":\{"n":(\d+)`)

// Serve declares types and runs their attempts until the worker ends the stream.
func Serve(slots int, types []Type) error {
	socket, err := takeSocket()
	if err != nil {
		return err
	}
	app := &app{
		types: map[string]Type{}, socket: socket, cancels: map[uint64]context.CancelFunc{}, calls: map[uint64]chan reply{},
	}
	for _, declared := range types {
		app.types[declared.Name] = declared
	}
	app.send("ready", map[string]any{
		"protocol": 1, "runtime": runtime.Version(), "slots": slots, "responsive": true, "types": types,
	})
	lines := bufio.NewReaderSize(socket, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break // the worker has ended the stream, or has died
		}
		app.handle(line)
	}
	app.running.Wait()
	return nil
}

// takeSocket moves the socket to a descriptor that child processes do not inherit, and opens /dev/null as descriptor 0.
func takeSocket() (net.Conn, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Dup(0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "worker")
	defer file.Close()
	socket, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("descriptor 0 is not the socket of a worker: %w; start the program with `kafleet dev -- COMMAND`", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return socket, syscall.Dup3(int(null.Fd()), 0, 0)
}

func (app *app) send(kind string, fields any) {
	line, err := json.Marshal(map[string]any{kind: fields})
	if err != nil {
		panic(err) // the fields have been encoded before, or consist of plain types
	}
	app.writing.Lock()
	defer app.writing.Unlock()
	_, _ = app.socket.Write(append(line, '\n')) // fails if the worker has died
}

func (app *app) handle(line []byte) {
	var message message
	if err := json.Unmarshal(line, &message); err != nil {
		if found := number.FindSubmatch(line); found != nil {
			n, _ := strconv.ParseUint(string(found[1]), 10, 64)
			app.send("error", map[string]any{"n": n, "outcome": "dead", "kind": "bad_params", "message": err.Error()})
		}
		return
	}
	switch {
	case message.Attempt != nil:
		app.start(message.Attempt)
	case message.Cancel != nil:
		app.sharing.Lock()
		cancel := app.cancels[message.Cancel.N]
		app.sharing.Unlock()
		if cancel != nil {
			cancel()
		}
	case message.Reply != nil:
		app.sharing.Lock()
		waiting := app.calls[message.Reply.Call]
		delete(app.calls, message.Reply.Call)
		app.sharing.Unlock()
		if waiting != nil {
			waiting <- *message.Reply
		}
	case message.Ping != nil:
		app.send("pong", message.Ping)
	}
}

func (app *app) start(attempt *attempt) {
	left := time.Duration(attempt.LeftMs) * time.Millisecond
	inner, cancel := context.WithTimeout(context.Background(), left)
	app.sharing.Lock()
	app.cancels[attempt.N] = cancel
	app.sharing.Unlock()
	cx := &Context{Context: inner, ID: attempt.ID, app: app, n: attempt.N}
	app.running.Add(1)
	go func() {
		defer app.running.Done()
		kind, fields := app.run(cx, attempt)
		app.sharing.Lock()
		delete(app.cancels, attempt.N)
		app.sharing.Unlock()
		cancel()
		cx.Send(kind, fields)
	}()
}

// run returns the answer to an attempt.
func (app *app) run(cx *Context, attempt *attempt) (kind string, fields map[string]any) {
	defer func() {
		if why := recover(); why != nil {
			kind, fields = "error", failed(fmt.Errorf("panic: %v", why))
		}
	}()
	output, err := app.types[attempt.Type].run(cx, attempt.Params)
	if err != nil {
		return "error", failed(err)
	}
	if _, err := json.Marshal(output); err != nil {
		return "error", failed(&Failure{Outcome: "fail", Kind: "bad_output", Message: err.Error()})
	}
	return "ok", map[string]any{"output": output}
}

func failed(err error) map[string]any {
	failure := &Failure{Outcome: "retry", Kind: "error", Message: err.Error()}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		failure.Outcome, failure.Kind = "cancelled", "cancelled"
	}
	errors.As(err, &failure)
	fields := map[string]any{"outcome": failure.Outcome, "kind": failure.Kind, "message": failure.Message}
	if failure.AfterMs != nil {
		fields["after_ms"] = *failure.AfterMs
	}
	return fields
}

// SpawnNow publishes children at once and returns their ids.
func (cx *Context) SpawnNow(tasks ...map[string]any) ([]string, error) {
	answer := make(chan reply, 1)
	cx.app.sharing.Lock()
	cx.app.lastCall++
	call := cx.app.lastCall
	cx.app.calls[call] = answer
	cx.app.sharing.Unlock()
	cx.Send("spawn", map[string]any{"call": call, "tasks": tasks})
	select {
	case reply := <-answer:
		if reply.Error != nil {
			return nil, &Failure{Outcome: "retry", Kind: reply.Error.Kind, Message: reply.Error.Message}
		}
		return reply.IDs, nil
	case <-cx.Done():
		return nil, cx.Err()
	}
}
