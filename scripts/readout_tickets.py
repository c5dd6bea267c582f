"""Made-up messages to a company, with questions whose answers are known by construction.

The data at hand has few messages with several facts in them, which is what openjev is mostly asked about. Every
message here is put together from sentences that each carry one fact: what it is about, how urgent it is, whether
the writer threatens to leave, how they feel. Names, numbers and dates are invented.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

JSON = dict[str, Any]

# Topic: (team, is a refund asked for, sentences).
TOPICS: dict[str, tuple[str, bool, tuple[str, ...]]] = {
    "refund": ("billing", True, (
        "Please send the {amount} for order {order} back to my account.",
        "I returned the {item} two weeks ago and would like my money back.",
        "We paid invoice {invoice} two times. Please transfer one of the payments back to us.",
        "I never used the {plan} plan this year, so I ask for a refund of {amount}.",
        "You took {amount} from my card although I had cancelled. I want that money returned.",
        "The {item} never worked. I do not want another one, I want a refund.",
        "Kindly reimburse us for the duplicate charge of {amount}.",
        "When will I be given back the {amount} that was booked by mistake?",
        "I was billed for {seats} seats but we have half of that. Give us back the difference.",
        "Please reverse the payment of {amount}, it was made by accident.",
        "I expect the {amount} for the missing {item} to be credited to me.",
        "The trial was billed although I had ended it. Kindly give the {amount} back.",
        "As the {item} never reached me, I ask you to repay what it cost.",
        "I cancelled within fourteen days, so I am entitled to my money.",
        "Could the {amount} that were taken too much be returned?",
        "We were promised a credit of {amount} in {month} and are still waiting for it.",
        "I sent the {item} back unopened. Please transfer the price to my bank.",
        "There are two bookings of {amount} for one order. One of them has to come back to us.",
        "Invoice {invoice} was settled in {month}, yet {amount} left our account again. Undo the second debit.",
        "The seminar was called off, so I want what I paid for it returned to me.",
        "You have debited {amount} more than agreed. How do I get it back?",
        "My {item} broke after a day; I am sending it back and expect the full price.",
        "Refund me the {amount}, the {plan} plan is not what was advertised.",
    )),
    "payment question": ("billing", False, (
        "Could you send me a copy of invoice {invoice}?",
        "Our address on the invoice is wrong, please correct it.",
        "How can I change the card that we pay with?",
        "Is it possible to pay by bank transfer instead of by card?",
        "I do not understand the line about {amount} on my last bill. What is it for?",
        "We need our tax number on all future invoices.",
        "Why did the price go up to {amount} this month?",
        "My payment was declined although the card is fine.",
        "When is the next payment due?",
        "Which of our invoices are still open?",
        "Please put our new company name on the bill.",
        "Can we pay for the whole year at once?",
        "Which address should we send the cheque for {amount} to?",
        "Is value added tax already part of the {amount}?",
        "A payment of {amount} has gone out to you, has it arrived?",
        "The bookkeeper needs the receipt for {month}.",
    )),
    "bug": ("technical", False, (
        "The export to PDF ends with error {code} since the last update.",
        "When I press save in the editor, nothing happens.",
        "Search finds none of the documents that we added in {month}.",
        "The mobile app crashes every time I open the calendar.",
        "Since yesterday numbers in the report are shown with the wrong currency.",
        "Uploaded pictures come out upside down.",
        "The reminder mails are sent twice.",
        "Filtering by date gives an empty page with code {code}.",
        "The calendar sync puts every meeting one hour too early.",
        "The button for a new entry has been grey since this morning.",
        "Photos that I attach are gone as soon as I reload.",
        "After signing in I land on an error page.",
        "The printout cuts off the last column.",
    )),
    "outage": ("technical", False, (
        "The whole site is down for us, we only see error {code}.",
        "None of us can log in, the page just spins.",
        "Your API answers every call with {code}.",
        "All our dashboards are empty and nothing loads.",
        "The service has been unreachable from our office for an hour.",
        "Not one of our screens shows anything since noon.",
        "Every page times out, for all forty of us.",
    )),
    "how-to": ("technical", False, (
        "How do I connect the calendar with our own system?",
        "Where do I find the setting for two-factor login?",
        "Is there a way to import contacts from a spreadsheet?",
        "Which address do I have to allow in our firewall?",
        "How can I move a project from one workspace to another?",
    )),
    "new business": ("sales", False, (
        "We would like an offer for {seats} seats.",
        "What would it cost to go from the {plan} plan to the next larger one?",
        "Do you have a discount for schools?",
        "Could somebody show us the product before we decide?",
        "We want to add {seats} more users from {month} on. What are your prices?",
        "Is there a trial for companies of our size?",
        "Our team is growing and we are interested in the {plan} plan.",
        "Please send a quote for {seats} licences.",
        "What discount can you give for {seats} people for two years?",
        "We are thinking of buying the {plan} plan, who can advise us?",
    )),
    "delivery": ("shipping", False, (
        "My order {order} should have come last week, where is it?",
        "The parcel arrived open and the {item} is scratched.",
        "The tracking page has shown the same place for six days.",
        "You sent me a {item}, but I had ordered something else.",
        "Can order {order} be sent to another address?",
        "The courier says that he delivered the {item}, but nobody here got it.",
    )),
    "security": ("security", False, (
        "I got a mail in your name that asks for my password.",
        "Somebody signed in to my account from another country.",
        "A stranger on the phone said he was from your company and wanted my card number.",
        "There is a login in our log that none of us made.",
    )),
    "idea": ("product", False, (
        "It would be great to have a dark mode.",
        "Please add a way to sort the list by {month}.",
        "I miss a button that copies a whole project.",
        "Have you thought about an app for watches?",
        "A weekly summary by mail would help us a lot.",
    )),
    "praise": ("other", False, (
        "I just want to say that the new version is wonderful.",
        "Thank you for the quick help last week, everything is solved.",
        "Your colleague on the phone was very kind, please tell them.",
        "We have used the {plan} plan for a year and are very happy.",
        "What a great seminar that was, my whole team enjoyed it.",
        "Nothing is wrong, I only write to praise your support.",
    )),
    "no request for us": ("other", False, (
        "I am writing a school paper, how many people work for you?",
        "Is the office in the city centre open to visitors?",
        "We sell coffee machines and would like to show you our catalogue.",
        "Are you still looking for a driver? I would like to apply.",
    )),
}  # fmt: skip
TEAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "billing": (
        ("billing", "payments", "finance", "accounts"),
        ("Invoices, charges and refunds", "Everything about money", "Payments and bills"),
    ),
    "technical": (
        ("technical", "support", "tech_support", "engineering", "helpdesk"),
        (
            "Errors, outages and how to use the product",
            "When something does not work",
            "Problems with the product",
        ),
    ),
    "sales": (
        ("sales", "new_business", "commercial"),
        ("Offers, prices and new seats", "People who may buy", "Quotes and larger plans"),
    ),
    "shipping": (
        ("shipping", "delivery", "logistics"),
        ("Parcels and deliveries", "Orders on their way", "Goods that are late or damaged"),
    ),
    "security": (
        ("security", "trust_and_safety"),
        ("Suspicious mails and logins", "Fraud and misuse"),
    ),
    "product": (("product", "ideas"), ("Wishes and ideas", "Suggestions for the product")),
    "other": (("other", "none", "general"), ("Anything else", "None of these", "Everything else")),
}
# Urgency, lowest first: what the message says.
URGENCY: tuple[tuple[str, ...], ...] = (
    (
        "There is no hurry.",
        "Whenever you have time.",
        "It can wait.",
        "",
        "No rush at all.",
        "Some time next month is fine.",
        "Take your time.",
        "This is not pressing.",
        "Just when somebody gets round to it.",
        "It is only for our records.",
    ),
    (
        "We need this by the end of the week.",
        "Please get back to me before {day}.",
        "It should be settled within a few days.",
        "I would need an answer this week.",
        "By {day} at the latest, please.",
        "Please sort this out in the next few days.",
        "We hope to have it settled before the weekend.",
        "If possible before {day}.",
        "It would be good to have this done this week.",
    ),
    (
        "I need this today.",
        "Please call me back this afternoon.",
        "This has to be done before 5 pm today.",
        "Our customer is waiting for it tonight.",
        "It is due at the end of the day.",
        "Could it be fixed before tonight?",
        "The deadline is this evening.",
        "We have a presentation this afternoon and need it by then.",
        "Please see to it within the next hours.",
    ),
    (
        "We cannot work at all until this is solved.",
        "Everything stands still here right now.",
        "All our people are waiting, please act immediately.",
        "Our shop is closed because of this, every minute costs us money.",
        "This is an emergency: we are stuck at this very moment.",
        "Nobody here can do anything until you act.",
        "Production has come to a halt.",
        "We are losing customers by the minute.",
        "Forty people sit idle since this started.",
    ),
)
SCALES: tuple[tuple[str, ...], ...] = (
    ("Can wait", "Within the week", "Today", "Right now"),
    ("Low", "Normal", "High", "Critical"),
    ("No hurry", "Some days", "Same day", "Immediately, work has stopped"),
    ("Routine", "Soon", "Today", "Emergency"),
    ("Not urgent", "This week", "Before the day ends", "Everything is blocked"),
)
LEAVING = (
    "If this is not solved I will close my account.",
    "Otherwise we will look for another provider.",
    "I am going to dispute the charge with my bank.",
    "We are already talking to one of your competitors.",
    "One more time and we cancel our contract.",
    "I will end my subscription next month if nothing changes.",
    "Then my lawyer will write to you and we are gone.",
    "In that case we move everything to somebody else.",
    "I have had enough and will not renew.",
    "If I hear nothing, my bank will take the payment back.",
    "We have decided to leave you at the end of the quarter.",
    "Please delete my account, I am done with you.",
    "Next year we will be with another supplier.",
    "I have asked my card company to reverse the charge unless you act.",
    "My finger is on the cancel button.",
    "Should this go on, we will switch to a rival product.",
    "Consider this our notice.",
    "We will take our business elsewhere.",
    "If that is your answer, I quit.",
    "After this we do not want to stay with you.",
    "Our contract ends in {month} and we will not extend it.",
)
STAYING = (
    "",
    "",
    "Apart from that we like working with it.",
    "We have been with you for {years} years.",
    "I look forward to your answer.",
    "Please let me know if you need anything else from me.",
    "Best wishes from the whole team.",
    "We are glad to be your customers.",
    "We will surely order again.",
    "Otherwise everything works fine.",
    "The rest of the product is good.",
    "We have just renewed for another year.",
    "My colleagues send their regards.",
    "I can be reached by phone all day.",
    "Tell me if you need a screenshot.",
)
MOODS: dict[str, tuple[str, ...]] = {
    "angry": (
        "This is unacceptable.",
        "I am really fed up with this.",
        "What kind of service is that?",
        "I am very disappointed.",
        "I have had more than enough of this.",
        "How hard can it be?!",
    ),
    "calm": ("", "", "Thanks in advance.", "I hope you are well.", "A short question."),
    "happy": (
        "I really enjoy using it.",
        "You are doing a great job.",
        "Your product makes my day easier.",
        "Many thanks, you are wonderful!",
    ),
}
REPEATED = (
    "I already wrote about this last {day}.",
    "This is my second message about it.",
    "I asked in {month} and never got a reply.",
    "As I told your colleague some days ago, this is still open.",
)
OPENINGS = ("", "Hello, ", "Hi, ", "Good morning, ", "Dear team, ", "Hey, ", "To whom it may concern, ")
NAMES = (
    *("Ana Ruiz", "Tom Becker", "Li Wei", "Priya Nair"),
    *("Jonas Holm", "Sara Costa", "Amir Haddad", "Eva Novak"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
MONTHS = ("January", "March", "April", "June", "August", "October", "November")
ITEMS = ("lamp", "headset", "desk", "coffee grinder", "keyboard", "jacket", "printer", "backpack")
PLANS = ("Basic", "Plus", "Business", "Starter", "Premium")
# Of one message: several questions tell the model more than several messages with one each, and cost it less.
QUESTIONS_EACH = 6
TEMPLATES = ("refund", "team", "topic", "urgency", "today", "leaving", "mood", "angry", "repeated")


def rows(messages: int, seed: int) -> Iterator[JSON]:
    """Give the labelled rows of so many messages, QUESTIONS_EACH of each, the same for the same seed."""
    rng = random.Random(f"tickets-{seed}")
    for number in range(messages):
        yield from _rows(rng, f"tickets-{seed}-{number:05d}")


def _filled(rng: random.Random, text: str) -> str:
    return text.format(
        amount=str(rng.randint(9, 900))
        + rng.choice((".00", ".50", ".90", ""))
        + rng.choice((" EUR", " dollars", " USD", " pounds")),
        order=rng.choice(("#", "A-", "")) + str(rng.randint(10000, 99999)),
        invoice=f"{rng.choice(('R', 'INV-', '20'))}{rng.randint(1000, 99999)}",
        item=rng.choice(ITEMS),
        plan=rng.choice(PLANS),
        seats=rng.randint(3, 80),
        code=rng.choice((500, 502, 503, 404, 113, 7001)),
        month=rng.choice(MONTHS),
        day=rng.choice(DAYS),
        years=rng.randint(2, 9),
    )


def _rows(rng: random.Random, id_: str) -> Iterator[JSON]:
    topic = "refund" if rng.random() < 0.2 else rng.choice(list(TOPICS))
    team, is_refund, sentences = TOPICS[topic]
    about = rng.choice(sentences)
    # What is down is not said to be without hurry.
    urgency = 0 if topic == "praise" else rng.randint(int(topic == "outage"), 3)
    is_leaving = rng.random() < 0.35 and topic != "praise"
    mood = "happy" if topic == "praise" else rng.choice(("angry", "calm", "calm", "happy"))
    if is_leaving and mood == "happy":
        mood = "calm"
    is_repeated = rng.random() < 0.3
    parts = [about, rng.choice(URGENCY[urgency]), rng.choice(LEAVING if is_leaving else STAYING)]
    middle = [*parts[1:], rng.choice(MOODS[mood]), rng.choice(REPEATED) if is_repeated else ""]
    rng.shuffle(middle)
    if rng.random() < 0.2:
        middle.insert(0, middle.pop())
        text = " ".join(part for part in [middle[0], about, *middle[1:]] if part)
    else:
        text = " ".join(part for part in [about, *middle] if part)
    text = rng.choice(OPENINGS) + _filled(rng, text)
    state = _state(rng, text, about)
    for template in rng.sample(TEMPLATES, QUESTIONS_EACH):
        question, label = _question(
            rng, template, topic, team, is_refund, urgency, is_leaving, mood, is_repeated
        )
        yield {
            "id": f"{id_}-{template}",
            "split": "train",
            "state": state,
            "question": question,
            "label": label,
            "source": "scripts/readout_tickets.py",
            "subset": template,
        }


def _state(rng: random.Random, text: str, about: str) -> Any:
    name = rng.choice(NAMES)
    form = rng.random()
    if form < 0.3:
        return text + rng.choice(("", "", f"\n\n{name}", f"\n\nRegards,\n{name}"))
    if form < 0.4:
        return [{"role": "user", "content": text}]
    subject = rng.choice(("Question", "Help", "Please read", "Request", " ".join(about.split()[:4])))
    if form < 0.6:
        return {"subject": _filled(rng, subject), "body": text}
    ticket: JSON = {
        "id": f"{rng.choice(('T-', 'REQ', 'case-', '#'))}{rng.randint(100, 99999)}",
        "received": f"202{rng.randint(3, 6)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        f"T{rng.randint(6, 21):02d}:{rng.randint(0, 59):02d}:00Z",
        "channel": rng.choice(("email", "form", "chat", "phone")),
    }
    if rng.random() < 0.5:
        ticket["customer"] = {
            "name": name,
            "plan": rng.choice(PLANS),
            "customer_since": f"20{rng.randint(15, 25)}-{rng.randint(1, 12):02d}",
        }
    ticket["subject"] = _filled(rng, subject)
    ticket["body"] = text + rng.choice(("", f"\n\n{name}", f"\n\nKind regards\n{name}"))
    if rng.random() < 0.2:
        ticket["attachments"] = rng.choice(([], ["photo.jpg"], ["log.txt"]))
    return ticket


def _noul(rng: random.Random, asked: Sequence[str], is_so: bool, yes: str, no: str) -> tuple[JSON, bool]:
    question: JSON = {"type": "noul", "instructions": rng.choice(asked)}
    form = rng.random()
    if form < 0.4:
        question["criteria"] = {"true": yes, "false": no}
    elif form < 0.6:
        question["criteria"] = {"true": "Yes", "false": "No"}
    return question, is_so


def _choice(
    rng: random.Random, asked: Sequence[str], options: Sequence[tuple[str, str | None]], gold: str
) -> tuple[JSON, str]:
    shown = list(options)
    rng.shuffle(shown)
    if rng.random() < 0.4:
        shown = [(name, None) for name, _ in shown]
    return {"type": "choice", "instructions": rng.choice(asked), "criteria": dict(shown)}, gold


def _question(
    rng: random.Random,
    template: str,
    topic: str,
    team: str,
    is_refund: bool,
    urgency: int,
    is_leaving: bool,
    mood: str,
    is_repeated: bool,
) -> tuple[JSON, Any]:
    asked: tuple[str, ...]
    options: list[tuple[str, str | None]]
    if template == "refund":
        asked = (
            "Does the customer want a refund?",
            "Is the writer asking for their money back?",
            "Should a payment be returned, according to the message?",
            "Is this a refund request?",
            "Does somebody ask us to pay money back?",
        )
        return _noul(rng, asked, is_refund, "Asks for money back", "Does not ask for money back")
    if template == "team":
        names = {one: rng.choice(spelt) for one, (spelt, _) in TEAMS.items()}
        others = [one for one in TEAMS if one not in (team, "other")]
        taken = [team, *rng.sample(others, rng.randint(1, min(4, len(others))))]
        if team != "other" and rng.random() < 0.5:
            taken.append("other")
        options = [(names[one], rng.choice(TEAMS[one][1])) for one in taken]
        asked = (
            "Who should take care of this?",
            "Which team is this for?",
            "Where does this message belong?",
            "Which department should answer?",
            "Route this to a team.",
        )
        return _choice(rng, asked, options, names[team])
    if template == "topic":
        others = [one for one in TOPICS if one != topic]
        options = [(one, None) for one in (topic, *rng.sample(others, rng.randint(1, 5)))]
        return _choice(rng, ("What is it about?", "What kind of message is this?", "Topic?"), options, topic)
    if template == "urgency":
        scale = rng.choice(SCALES)
        asked = (
            "How urgent is this?",
            "How soon must somebody act?",
            "Set the priority.",
            "How pressing is it?",
        )
        if rng.random() < 0.75:
            return {"type": "score", "instructions": rng.choice(asked), "criteria": list(scale)}, urgency
        return _choice(rng, asked, [(level, None) for level in scale], scale[urgency])
    if template == "today":
        asked = ("Does this need an answer today?", "Must it be dealt with on the same day?", "Is it urgent?")
        return _noul(rng, asked, urgency >= 2, "Today or at once", "It has more time")
    if template == "leaving":
        asked = (
            "Does the customer threaten to leave?",
            "Is there a risk that we lose this customer?",
            "Does the writer say that they may cancel or go elsewhere?",
            "Is the customer about to go to somebody else?",
        )
        return _noul(
            rng, asked, is_leaving, "Says they will cancel, leave or dispute", "Says nothing of that kind"
        )
    if template == "mood":
        named = {
            "angry": rng.choice(("angry", "upset", "annoyed")),
            "calm": rng.choice(("calm", "neutral")),
            "happy": rng.choice(("happy", "pleased", "positive")),
        }
        options = [(name, None) for name in named.values()]
        return _choice(rng, ("How does the writer feel?", "What is the tone?", "Mood?"), options, named[mood])
    if template == "angry":
        asked = ("Is the customer angry?", "Is the writer upset?", "Does the message sound annoyed?")
        return _noul(rng, asked, mood == "angry", "Angry or disappointed", "Calm or friendly")
    asked = (
        "Has the customer written about this before?",
        "Is this a repeated request?",
        "Did they contact us about it earlier?",
    )
    return _noul(rng, asked, is_repeated, "It is not the first message", "Nothing says so")
