"""What a bisection found, in a sentence or for programs, with all that it rests on."""

from typing import Any

import msgspec
from rich.console import Console

from .bisect import Result
from .bisect_state import BisectState
from .ranges import NAME_DIGITS, Commit
from .search import max_steps


def as_json(result: Result) -> dict[str, Any]:
    """The answer, and what it rests on."""
    plan, found = result.state.plan, result.found
    names = [plan.good, *(one.commit for one in plan.commits)]
    facts: dict[str, Any] = {
        "exit_code": int(result.code),
        "series": "/".join(result.state.series) if result.state.series else None,
        "others": result.state.others,
        "max_steps": max_steps(len(plan.commits)),
        "steps": [{"commit": name, **msgspec.to_builtins(step)} for name, step in result.state.steps.items()],
        "messages": result.messages,
    }
    if found is None:
        return facts
    return facts | {
        "num_steps": found.num_steps,
        "first_slower": names[found.bad + 1] if found.is_exact else None,
        "after": names[found.good + 1],
        "up_to": names[found.bad + 1],
        "open": [names[place + 1] for place in found.open],
    }


def show(result: Result, console: Console) -> None:
    """The answer in a sentence, then every commit that was asked."""
    plan, found, state = result.state.plan, result.found, result.state
    lines = list(result.messages)
    if found is not None:
        lines += [f"followed: {'/'.join(state.series or ())}"]
        lines += [f"also slower in BAD: {other}" for other in state.others]
        names = [plan.good[:NAME_DIGITS], *map(str, plan.commits)]
        if found.is_exact:
            lines.append(f"first slower commit: {names[found.bad + 1]}")
        else:
            lines.append(f"between {names[found.good + 1]} and {names[found.bad + 1]}: {len(found.open)} untold")
        lines += [f"  untold: {_untold(state, plan.commits[place])}" for place in found.open]
        lines.append(f"{found.num_steps} commits measured, at most {max_steps(len(plan.commits))}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _untold(state: BisectState, commit: Commit) -> str:
    step = state.steps.get(commit.commit)
    return f"{commit}: {f'{step.answer}: {step.reason}' if step else 'no measurement was left for it'}"
