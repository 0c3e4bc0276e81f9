# Every target makes its own virtual environment; PYTHON names the interpreter to make it with.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# p4runtime-shell demands an old protobuf; what needs only P4Runtime is tested with a current one as well.
CURRENT ?= .venv-current
# Tests start hundreds of Python processes, none of which should compile what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

# What numba makes of simulator, switch and hosts, in a minute of a processor, is kept for the user and belongs to the
# installation: nobody has to wait for it later. Where it cannot be made, Python does without.
COMPILE = { $(BIN)/python -c 'import tensorexpress.sim.kernel.native' & \
	$(BIN)/python -c 'import tensorexpress.host.native_endpoint, tensorexpress.switch.native.build as b; b.functions()'; \
	wait; } 2>/dev/null

.PHONY: demo quick torch test rest thorough test-current check bench studies clean

demo: $(READY)
	$(BIN)/tensorexpress predict --plot demo.png
	$(BIN)/tensorexpress run examples/loop.toml --set iterations=5 --wires --attempts 3 -o demo
	$(BIN)/tensorexpress compare demo/fifo.trace demo/tensorexpress.trace --predict --plot demo-run.png
	@echo "The prediction as a picture: demo.png; prediction and measurement side by side: demo-run.png"

# Within a minute: what needs no other process and little time; `pytest --measure FILE` finds out what that is.
quick: $(READY)
	$(BIN)/python -m pytest --quick

# 200 MB that only the tests of tensorexpress.torch need: they are skipped where it cannot be had.
TORCH ?= torch==2.13.0+cpu
torch: $(READY)
	@$(BIN)/python -c 'import sys, importlib.util as u; sys.exit(u.find_spec("torch") is None)' \
		|| $(BIN)/python -m pip install --quiet '$(TORCH)' >/dev/null 2>&1 \
		|| echo "$(TORCH) cannot be installed: tests that need torch are skipped"

# Four files at a time, on two cores as well, because many tests wait for links; one after another: make test PYTEST=
PYTEST ?= -n 4 --dist loadfile --no-loadscope-reorder
# `make test` leaves what takes long and says little more to `make rest`: tests/support/thorough.py has the rule.
test: PART = --no-rest
rest: PART = --rest
# All cases of large sets, of which the other two try a part.
thorough: export TENSOREXPRESS_THOROUGH = 1
# Machine code and, the first time, the tests themselves are compiled before all of them want that at once.
test rest thorough: $(READY) torch
	@$(COMPILE); [ -d tests/__pycache__ ] || $(BIN)/python -m pytest --collect-only >/dev/null; true
	$(BIN)/python -m pytest $(PART) $(PYTEST)

test-current: $(CURRENT)/.ready
	$(CURRENT)/bin/python -m pytest tests/test_control.py tests/test_deploy.py tests/test_device.py \
		tests/test_p4runtime_*.py tests/test_replay_pcap.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/check build/lib
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target build/check .
	cd build/check && ../../$(BIN)/mypy --config-file ../../setup.cfg -p tensorexpress

bench: $(READY)
	$(BIN)/python -m pip install --quiet ns3
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/switch.py
	$(BIN)/python benchmarks/pauses.py
	$(BIN)/python benchmarks/host.py
	$(BIN)/python benchmarks/run.py --iterations 2

# What was measured elsewhere beside what is predicted here: docs/studies.md.
studies: $(READY)
	$(BIN)/python benchmarks/studies.py

$(READY): EXTRAS = dev
$(CURRENT)/.ready: EXTRAS = p4,scapy,suite
$(READY): AFTER = $(COMPILE)
$(CURRENT)/.ready: AFTER = true
$(READY) $(CURRENT)/.ready: setup.cfg
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet 'setuptools>=68' wheel
	$(@D)/bin/python -m pip install --quiet --no-build-isolation --editable '.[$(EXTRAS)]'
	@$(AFTER)
	touch $@

clean:
	rm -rf $(VENV) $(CURRENT) build *.egg-info demo demo.png demo-run.png
